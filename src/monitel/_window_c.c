/* The open window of a Stat, in C. _window_py.py is the twin with the same behaviour in Python.
 *
 * Everything between two calls into Python happens under the GIL, so the state needs no lock; a function
 * that has called into Python (a test's clock, the value hook) reads the state again.
 *
 * Time is divided into intervals of the window's length, at multiples of it on the monotonic clock. An interval ends at
 * its boundary. It has one window, or several if a flush closed one early. If max_samples closed it, further samples
 * of the interval are discarded.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* For functions that add() must not inline, so that its common path saves no registers for rare cases. */
#if defined(__GNUC__)
#define APART __attribute__((noinline))
#define RARE __attribute__((noinline, cold))
#else
#define APART
#define RARE
#endif

#include "_recorder.h"

/* The state of Welford's algorithm for the standard deviation of a window's samples. */
typedef struct {
    double mean, m2;
} Welford;

typedef struct Accumulator {
    PyObject_HEAD
    int64_t boundary; /* end of the interval, monotonic ns; INT64_MIN until opened */
    int64_t count;
    int64_t capacity; /* samples that the open window takes: max_samples less earlier and pending samples of the interval */
    double sum, min, max, last;
    int64_t first_step, last_step; /* -1: no step was set */
    int64_t discarded, discarded_before; /* in total, and when the previous window closed */
    int64_t previous_end; /* Unix ns */
    int64_t window, max_samples;
    PyObject *clock; /* a test's clock; NULL: the system's clocks */
    clockid_t clock_id;
    bool plain;         /* the system's clocks, no histogram, no standard deviation: add() takes the short path */
    Recorder *recorder; /* NULL: no histogram was requested */
    Welford *welford;   /* NULL: no standard deviation was requested */
    PyObject *pending;      /* collects the pending samples of the open window; NULL: it has none */
    int64_t pending_count;  /* number of pending samples: not included in count, and subtracted from capacity */
    int64_t before_pending; /* count when the last pending sample was added */
    bool pending_first;     /* the window's first sample is pending */
    struct Accumulator *newer, *older; /* all live Accumulators, in the order of creation */
} Accumulator;

/* A window that was just closed; monitel.snapshot has the same as Python tuples. */
typedef struct {
    int64_t start, end, count, discarded, first_step, last_step;
    double sum, min, max, last, stddev;
    bool has_stddev, has_histogram;
    Recorder recorder; /* only set if has_histogram */
    PyObject *pending; /* owned; NULL: none */
    int64_t pending_count;
    bool pending_first, pending_last;
} Closed;

/* The module refuses sub-interpreters, so these exist once in a process. */
static Accumulator *oldest, *newest;
static int64_t current_step = -1;
static PyObject *value_hook, *histogram_type, *snapshot_type, *reserved_type;
static PyObject *str_log_closed, *str_monotonic_ns, *str_time_ns;

/* ---- clocks ---- */

static int64_t
nanoseconds(struct timespec moment)
{
    return (int64_t)moment.tv_sec * 1000000000 + moment.tv_nsec;
}

static int64_t
read_system(clockid_t id)
{
    struct timespec moment;
    clock_gettime(id, &moment);
    return nanoseconds(moment);
}

static clockid_t
choose_clock(int64_t window)
{
#ifdef CLOCK_MONOTONIC_COARSE
    struct timespec resolution;
    if (clock_getres(CLOCK_MONOTONIC_COARSE, &resolution) == 0
        && nanoseconds(resolution) <= window / 10) {
        return CLOCK_MONOTONIC_COARSE;
    }
#else
    (void)window;
#endif
    return CLOCK_MONOTONIC;
}

/* -1 with an exception set: a clock never gives a negative time. */
static int64_t
read_injected(PyObject *clock, PyObject *method)
{
    PyObject *reading = PyObject_CallMethodNoArgs(clock, method);
    if (reading == NULL) {
        return -1;
    }
    int64_t ns = PyLong_AsLongLong(reading);
    Py_DECREF(reading);
    if (ns < 0 && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "a clock must not be negative, got %lld", (long long)ns);
    }
    return ns;
}

static inline int64_t
read_clock(Accumulator *self)
{
    if (self->clock != NULL) {
        return read_injected(self->clock, str_monotonic_ns);
    }
    return read_system(self->clock_id);
}

/* Reads the fine clock: the monotonic time, and the difference of the Unix time to it. -1 with an exception set. */
static int
read_moment(Accumulator *self, int64_t *now, int64_t *epoch)
{
    int64_t unix_now;
    if (self->clock == NULL) {
        unix_now = read_system(CLOCK_REALTIME);
        *now = read_system(CLOCK_MONOTONIC);
    }
    else if ((unix_now = read_injected(self->clock, str_time_ns)) < 0
             || (*now = read_injected(self->clock, str_monotonic_ns)) < 0) {
        return -1;
    }
    *epoch = unix_now - *now;
    return 0;
}

/* ---- the window ---- */

static inline void
collect(Accumulator *self, double x)
{
    if (self->count++ == 0) {
        self->min = self->max = x;
        self->first_step = current_step;
    }
    else if (x > self->max) {
        self->max = x;
    }
    else if (x < self->min) {
        self->min = x;
    }
    self->sum += x;
    self->last = x;
    self->last_step = current_step;
}

static inline void
collect_distribution(Accumulator *self, double x)
{
    if (self->recorder != NULL) {
        recorder_add(self->recorder, x);
    }
    if (self->welford != NULL) {
        double from_mean = x - self->welford->mean;
        self->welford->mean += from_mean / (double)self->count;
        self->welford->m2 += from_mean * (x - self->welford->mean);
    }
}

static inline bool
is_empty(Accumulator *self)
{
    return self->count == 0 && self->pending == NULL;
}

/* Empties the open window. The caller has taken the reference to the pending samples. */
static void
start_empty(Accumulator *self)
{
    self->count = 0;
    self->sum = 0.0;
    self->min = Py_HUGE_VAL;
    self->max = -Py_HUGE_VAL;
    self->pending = NULL;
    self->pending_count = 0;
    if (self->recorder != NULL) {
        recorder_empty(self->recorder);
    }
    if (self->welford != NULL) {
        *self->welford = (Welford){0.0, 0.0};
    }
}

static void
start_interval(Accumulator *self, int64_t now)
{
    self->boundary = (now / self->window + 1) * self->window;
    self->capacity = self->max_samples;
}

/* Closes the open window: now, or at its boundary if that has passed.
 * 1: closed, 0: it was empty, -1: the clock failed. */
static int
close_window(Accumulator *self, Closed *closed)
{
    int64_t now, epoch;
    if (is_empty(self)) {
        return 0;
    }
    if (read_moment(self, &now, &epoch) < 0) {
        return -1;
    }
    if (is_empty(self)) { /* an injected clock, which is Python, may have closed it */
        return 0;
    }
    closed->start = Py_MAX(self->boundary - self->window + epoch, self->previous_end);
    closed->end = Py_MIN(now, self->boundary) + epoch;
    closed->count = self->count;
    closed->sum = self->sum;
    closed->min = self->min;
    closed->max = self->max;
    closed->last = self->last;
    closed->discarded = self->discarded - self->discarded_before;
    closed->first_step = self->first_step;
    closed->last_step = self->last_step;
    closed->has_stddev = self->welford != NULL;
    if (closed->has_stddev) {
        closed->stddev = self->count == 0 ? 0.0 : sqrt(self->welford->m2 / (double)self->count);
    }
    closed->has_histogram = self->recorder != NULL;
    if (closed->has_histogram) {
        closed->recorder = *self->recorder;
    }
    closed->pending = self->pending;
    closed->pending_count = self->pending_count;
    closed->pending_first = self->pending_first;
    closed->pending_last = self->before_pending == self->count;
    closed->end = Py_MAX(closed->end, closed->start + 1); /* times rise, even if the wall clock is set back */
    self->previous_end = closed->end;
    self->discarded_before = self->discarded;
    self->capacity -= self->count;
    start_empty(self);
    return 1;
}

/* Closes the window of the interval that has ended, and starts the interval of `tick`. Returns as close_window(). */
static int
roll_over(Accumulator *self, int64_t tick, Closed *closed)
{
    if (self->window == 0) {
        PyErr_SetString(PyExc_RuntimeError, "Stat.__init__() was not called: a subclass must call "
                                            "super().__init__(name, aggregations, window_size)");
        return -1;
    }
    int outcome = close_window(self, closed);
    if (outcome >= 0) {
        start_interval(self, tick);
    }
    return outcome;
}

static PyObject *
step_object(int64_t step)
{
    if (step < 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLongLong(step);
}

/* Makes a NamedTuple. Steals the references to its fields, each of which may be NULL with an exception set.
 * From CPython 3.14 on a tuple caches its hash, which is not initialized here: these tuples must not be hashed. */
static PyObject *
named_tuple(PyObject *type, PyObject **fields, Py_ssize_t length)
{
    bool complete = true;
    for (Py_ssize_t i = 0; i < length; i++) {
        complete &= fields[i] != NULL;
    }
    PyObject *found = complete ? ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, length) : NULL;
    for (Py_ssize_t i = 0; i < length; i++) {
        if (found != NULL) {
            PyTuple_SET_ITEM(found, i, fields[i]);
        }
        else {
            Py_XDECREF(fields[i]);
        }
    }
    return found;
}

/* Makes a monitel.snapshot.Snapshot. */
static PyObject *
snapshot_object(const Closed *closed)
{
    PyObject *fields[] = {
        PyLong_FromLongLong(closed->start),
        PyLong_FromLongLong(closed->end),
        PyLong_FromLongLong(closed->count),
        PyFloat_FromDouble(closed->sum),
        PyFloat_FromDouble(closed->min),
        PyFloat_FromDouble(closed->max),
        PyFloat_FromDouble(closed->last),
        PyLong_FromLongLong(closed->discarded),
        step_object(closed->first_step),
        step_object(closed->last_step),
        closed->has_stddev ? PyFloat_FromDouble(closed->stddev) : Py_NewRef(Py_None),
        closed->has_histogram ? histogram_object(&closed->recorder, histogram_type) : Py_NewRef(Py_None),
    };
    return named_tuple(snapshot_type, fields, sizeof(fields) / sizeof(fields[0]));
}

/* Makes a monitel.snapshot.Reserved, or None without pending samples. */
static PyObject *
reserved_object(const Closed *closed)
{
    if (closed->pending == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *fields[] = {
        Py_NewRef(closed->pending),
        PyLong_FromLongLong(closed->pending_count),
        PyBool_FromLong(closed->pending_first),
        PyBool_FromLong(closed->pending_last),
    };
    return named_tuple(reserved_type, fields, sizeof(fields) / sizeof(fields[0]));
}

/* Makes both, and releases the reference to the pending samples. -1 with an exception set. */
static int
closed_objects(const Closed *closed, PyObject **snapshot, PyObject **reserved)
{
    *snapshot = snapshot_object(closed);
    *reserved = *snapshot == NULL ? NULL : reserved_object(closed);
    Py_XDECREF(closed->pending);
    if (*reserved == NULL) {
        Py_CLEAR(*snapshot);
        return -1;
    }
    return 0;
}

/* Calls self._log_closed(). The state is complete: the call may add to the Stat or close it again. */
static PyObject *
log_closed(Accumulator *self, const Closed *closed)
{
    PyObject *arguments[3] = {(PyObject *)self, NULL, NULL};
    if (closed_objects(closed, &arguments[1], &arguments[2]) < 0) {
        return NULL;
    }
    PyObject *result = PyObject_VectorcallMethod(str_log_closed, arguments, 3, NULL);
    Py_DECREF(arguments[1]);
    Py_DECREF(arguments[2]);
    return result;
}

/* Ends a method after close_window() or roll_over(). */
static PyObject *
finish(Accumulator *self, int outcome, const Closed *closed)
{
    if (outcome > 0) {
        return log_closed(self, closed);
    }
    return outcome < 0 ? NULL : Py_NewRef(Py_None);
}

/* 1: converted, 0: the hook keeps the sample, -1: not a number, with an exception set. */
static int
convert(Accumulator *self, PyObject *value, double *x)
{
    if (PyFloat_Check(value)) {
        *x = PyFloat_AS_DOUBLE(value);
        return 1;
    }
    if (PyLong_CheckExact(value)) {
        *x = PyLong_AsDouble(value);
        if (*x != -1.0 || !PyErr_Occurred()) {
            return 1;
        }
        PyErr_Clear(); /* too large: the hook raises */
    }
    PyObject *arguments[2] = {(PyObject *)self, value};
    PyObject *hook = Py_NewRef(value_hook);
    PyObject *result = PyObject_Vectorcall(hook, arguments, 2, NULL);
    int outcome = -1;
    Py_DECREF(hook);
    if (result == Py_None) {
        outcome = 0;
    }
    else if (result != NULL) {
        *x = PyFloat_AsDouble(result);
        outcome = *x == -1.0 && PyErr_Occurred() ? -1 : 1;
    }
    Py_XDECREF(result);
    return outcome;
}

/* ---- methods ---- */

/* Returns the one argument, by position or as v=. NULL with the exception of a Python function. */
static RARE PyObject *
sample_argument(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *value = nargs > 0 ? args[0] : NULL;
    Py_ssize_t nkeywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t i = 0; i < nkeywords; i++) {
        PyObject *keyword = PyTuple_GET_ITEM(kwnames, i);
        if (PyUnicode_CompareWithASCIIString(keyword, "v") != 0) {
            PyErr_Format(PyExc_TypeError, "Stat.add() got an unexpected keyword argument '%U'", keyword);
            return NULL;
        }
        if (value != NULL) {
            PyErr_SetString(PyExc_TypeError, "Stat.add() got multiple values for argument 'v'");
            return NULL;
        }
        value = args[nargs + i];
    }
    if (nargs > 1) {
        PyErr_Format(PyExc_TypeError, "Stat.add() takes 2 positional arguments but %zd were given", nargs + 1);
        return NULL;
    }
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "Stat.add() missing 1 required positional argument: 'v'");
    }
    return value;
}

/* Adds the sample that starts an interval or reaches its sample limit; discards one beyond the limit. */
static RARE PyObject *
add_at_boundary(Accumulator *self, int64_t tick, double x)
{
    Closed closed;
    int outcome = 0;
    if (tick >= self->boundary && (outcome = roll_over(self, tick, &closed)) < 0) {
        return NULL;
    }
    if (self->count == self->capacity) {
        self->discarded++;
    }
    else {
        collect(self, x);
        collect_distribution(self, x);
        if (self->count == self->capacity && outcome == 0) { /* one window per add(), the next at its boundary */
            outcome = close_window(self, &closed);
        }
    }
    return finish(self, outcome, &closed);
}

/* Adds a sample that is not exactly a float, or adds to a Stat with a test's clock or a distribution. */
static APART PyObject *
add_any(Accumulator *self, PyObject *value)
{
    double x;
    int outcome = convert(self, value, &x);
    if (outcome <= 0) {
        return outcome < 0 ? NULL : Py_NewRef(Py_None);
    }
    int64_t tick = read_clock(self);
    if (tick < 0) {
        return NULL;
    }
    if (tick >= self->boundary || self->count + 1 >= self->capacity) {
        return add_at_boundary(self, tick, x);
    }
    collect(self, x);
    collect_distribution(self, x);
    Py_RETURN_NONE;
}

static PyObject *
stat_add(Accumulator *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *value = nargs == 1 && kwnames == NULL ? args[0] : sample_argument(args, nargs, kwnames);
    if (value == NULL) {
        return NULL;
    }
    if (!PyFloat_CheckExact(value) || !self->plain) {
        return add_any(self, value);
    }
    int64_t tick = read_system(self->clock_id);
    if (tick >= self->boundary || self->count + 1 >= self->capacity) {
        return add_at_boundary(self, tick, PyFloat_AS_DOUBLE(value));
    }
    collect(self, PyFloat_AS_DOUBLE(value));
    Py_RETURN_NONE;
}

static PyMethodDef add_method = {
    "add", (PyCFunction)(void (*)(void))stat_add, METH_FASTCALL | METH_KEYWORDS,
    PyDoc_STR("add($self, /, v)\n--\n\n"
              "Add one sample, a real number.\n\n"
              "The sample that opens the next window closes the previous one and logs its event, in this thread; so\n"
              "does the sample that reaches max_samples. The sample is added before any handler runs: an exception of\n"
              "a handler is raised from add(), and no sample is lost. Thread-safe.\n\n"
              "Raises:\n    TypeError: Not a real number; it is not counted.")};

static PyObject *
accumulator_open(Accumulator *self, PyObject *args)
{
    long long window, max_samples;
    PyObject *clock;
    int histogram, stddev;
    int64_t now, epoch;
    if (!PyArg_ParseTuple(args, "LLOpp:_open", &window, &max_samples, &clock, &histogram, &stddev)) {
        return NULL;
    }
    if (clock != Py_None) {
        Py_XSETREF(self->clock, Py_NewRef(clock));
    }
    if ((histogram && self->recorder == NULL && (self->recorder = PyMem_New(Recorder, 1)) == NULL)
        || (stddev && self->welford == NULL && (self->welford = PyMem_New(Welford, 1)) == NULL)) {
        return PyErr_NoMemory();
    }
    if (histogram) {
        make_table();
    }
    start_empty(self);
    self->plain = clock == Py_None && !histogram && !stddev;
    self->clock_id = choose_clock(window);
    if (read_moment(self, &now, &epoch) < 0) {
        return NULL;
    }
    self->window = window;
    self->max_samples = max_samples;
    self->previous_end = now + epoch;
    start_interval(self, now);
    Py_RETURN_NONE;
}

static PyObject *
accumulator_reserve(Accumulator *self, PyObject *samples)
{
    Closed closed;
    int outcome = 0;
    PyObject *collector = NULL;
    int64_t tick = read_clock(self);
    if (tick < 0 || (tick >= self->boundary && (outcome = roll_over(self, tick, &closed)) < 0)) {
        return NULL;
    }
    if (self->count == self->capacity) {
        self->discarded++;
    }
    else {
        if (self->pending == NULL) {
            self->pending = Py_NewRef(samples);
            self->pending_first = self->count == 0;
        }
        collector = Py_NewRef(self->pending);
        self->pending_count++;
        self->before_pending = self->count;
        self->capacity--;
        if (self->count == self->capacity && outcome == 0) {
            outcome = close_window(self, &closed);
        }
    }
    collector = collector == NULL ? Py_NewRef(Py_None) : collector;
    if (outcome == 0) {
        return Py_BuildValue("(NO)", collector, Py_None);
    }
    PyObject *snapshot, *reserved;
    if (outcome < 0 || closed_objects(&closed, &snapshot, &reserved) < 0) {
        Py_DECREF(collector);
        return NULL;
    }
    return Py_BuildValue("(N(NN))", collector, snapshot, reserved);
}

static PyObject *
accumulator_close(Accumulator *self, PyObject *Py_UNUSED(ignored))
{
    Closed closed;
    return finish(self, close_window(self, &closed), &closed);
}

/* 1: the window has samples and its interval has ended, 0: it does not, -1: the clock failed. */
static int
is_expired(Accumulator *self)
{
    if (is_empty(self)) {
        return 0;
    }
    int64_t tick = read_clock(self);
    return tick < 0 ? -1 : tick >= self->boundary && !is_empty(self);
}

static PyObject *
accumulator_close_expired(Accumulator *self, PyObject *Py_UNUSED(ignored))
{
    int expired = is_expired(self);
    if (expired > 0) {
        return accumulator_close(self, NULL);
    }
    return expired < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
accumulator_reset(Accumulator *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *pending = self->pending;
    start_empty(self);
    self->capacity = self->max_samples;
    self->discarded = self->discarded_before = 0;
    Py_XDECREF(pending);
    Py_RETURN_NONE;
}

static PyMethodDef accumulator_methods[] = {
    {"_open", (PyCFunction)(void (*)(void))accumulator_open, METH_VARARGS,
     PyDoc_STR("Start collecting. Arguments: the length of an interval in ns, max_samples, a test's clock or None,\n"
               "whether to collect a histogram, whether to collect a standard deviation.")},
    {"_reserve", (PyCFunction)(void (*)(void))accumulator_reserve, METH_O,
     PyDoc_STR("Reserve a slot for a sample whose value is not known yet. The argument collects the window's pending\n"
               "samples if this one is the first. Return the collector, None if the window is full; and the window\n"
               "that was closed, or None.")},
    {"_close", (PyCFunction)(void (*)(void))accumulator_close, METH_NOARGS,
     PyDoc_STR("Close the open window, unless it is empty: now, or at its boundary if that has passed.")},
    {"_close_expired", (PyCFunction)(void (*)(void))accumulator_close_expired, METH_NOARGS,
     PyDoc_STR("Close the open window if its boundary has passed.")},
    {"_reset", (PyCFunction)(void (*)(void))accumulator_reset, METH_NOARGS,
     PyDoc_STR("Discard the open window without an event. Called in a forked child: the parent logs these samples.")},
    {NULL, NULL, 0, NULL},
};

static PyObject *
accumulator_count(Accumulator *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->count + self->pending_count);
}

static PyObject *
accumulator_max_samples(Accumulator *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->max_samples);
}

static PyObject *
accumulator_window_ns(Accumulator *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->window);
}

static PyObject *
accumulator_discarded(Accumulator *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->discarded);
}

static PyObject *
accumulator_coarse(Accumulator *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->clock_id != CLOCK_MONOTONIC);
}

static PyGetSetDef accumulator_properties[] = {
    {"count", (getter)accumulator_count, NULL, PyDoc_STR("Number of samples in the open window."), NULL},
    {"discarded", (getter)accumulator_discarded, NULL,
     PyDoc_STR("Number of samples that max_samples has kept out so far, in this process."), NULL},
    {"max_samples", (getter)accumulator_max_samples, NULL,
     PyDoc_STR("The most samples in an interval of the window's length."), NULL},
    {"_window_ns", (getter)accumulator_window_ns, NULL, PyDoc_STR("Length of an interval."), NULL},
    {"_coarse", (getter)accumulator_coarse, NULL, PyDoc_STR("True if add() reads the coarse clock."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyObject *
accumulator_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Accumulator *self = (Accumulator *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->boundary = INT64_MIN; /* the first add() finds that no window was opened */
    self->clock_id = CLOCK_MONOTONIC;
    self->plain = true;
    self->older = newest;
    *(newest == NULL ? &oldest : &newest->newer) = self;
    newest = self;
    return (PyObject *)self;
}

static int
accumulator_traverse(Accumulator *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->clock);
    Py_VISIT(self->pending);
    return 0;
}

static int
accumulator_clear(Accumulator *self)
{
    Py_CLEAR(self->clock);
    Py_CLEAR(self->pending);
    return 0;
}

static void
accumulator_dealloc(Accumulator *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    *(self->older == NULL ? &oldest : &self->older->newer) = self->newer;
    *(self->newer == NULL ? &newest : &self->newer->older) = self->older;
    Py_CLEAR(self->clock);
    Py_CLEAR(self->pending);
    PyMem_Free(self->recorder);
    PyMem_Free(self->welford);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyType_Slot accumulator_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("The open window of a Stat.")},
    {Py_tp_new, accumulator_new},
    {Py_tp_dealloc, accumulator_dealloc},
    {Py_tp_traverse, accumulator_traverse},
    {Py_tp_clear, accumulator_clear},
    {Py_tp_methods, accumulator_methods},
    {Py_tp_getset, accumulator_properties},
    {0, NULL},
};

static PyType_Spec accumulator_spec = {
    .name = "monitel._window_c.Accumulator",
    .basicsize = sizeof(Accumulator),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = accumulator_slots,
};

/* ---- functions ---- */

static PyObject *
window_live(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    for (Accumulator *self = oldest; found != NULL && self != NULL; self = self->newer) {
        /* a Stat that is being deallocated has no references left */
        if (Py_REFCNT(self) > 0 && PyList_Append(found, (PyObject *)self) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

static PyObject *
window_expired(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    /* A list, because an injected clock is Python, and may create or drop Stats. */
    PyObject *stats = window_live(NULL, NULL);
    PyObject *found = stats == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(stats); i++) {
        PyObject *self = PyList_GET_ITEM(stats, i);
        int expired = is_expired((Accumulator *)self);
        if (expired < 0 || (expired && PyList_Append(found, self) < 0)) {
            Py_CLEAR(found);
        }
    }
    Py_XDECREF(stats);
    return found;
}

static PyObject *
window_own_add(PyObject *Py_UNUSED(module), PyObject *type)
{
    PyObject *descriptor = PyDescr_NewMethod((PyTypeObject *)type, &add_method);
    if (descriptor == NULL || PyObject_SetAttrString(type, "add", descriptor) < 0) {
        Py_XDECREF(descriptor);
        return NULL;
    }
    Py_DECREF(descriptor);
    return Py_NewRef(type);
}

static PyObject *
window_set_value_hook(PyObject *Py_UNUSED(module), PyObject *hook)
{
    PyObject *previous = value_hook;
    value_hook = Py_NewRef(hook);
    return previous;
}

static PyObject *
window_set_step(PyObject *Py_UNUSED(module), PyObject *step)
{
    int64_t number = step == Py_None ? -1 : PyLong_AsLongLong(step);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    current_step = number;
    Py_RETURN_NONE;
}

static PyObject *
window_get_step(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return step_object(current_step);
}

static PyObject *
window_untrack(PyObject *Py_UNUSED(module), PyObject *object)
{
    if (PyObject_IS_GC(object)) {
        PyObject_GC_UnTrack(object);
    }
    Py_RETURN_NONE;
}

static PyMethodDef window_functions[] = {
    {"live", window_live, METH_NOARGS, PyDoc_STR("Return all live Stats, oldest first.")},
    {"expired", window_expired, METH_NOARGS,
     PyDoc_STR("Return the live Stats that have samples of an interval that has ended, oldest first.")},
    {"own_add", window_own_add, METH_O,
     PyDoc_STR("Set add() on the class itself: CPython calls an inherited C method more slowly.")},
    {"set_value_hook", window_set_value_hook, METH_O,
     PyDoc_STR("Set the hook(stat, value) -> float | None that converts values, and return the previous one.")},
    {"set_step", window_set_step, METH_O, PyDoc_STR("Set the training step, an int, or None.")},
    {"get_step", window_get_step, METH_NOARGS, PyDoc_STR("Return the training step; None when never set.")},
    {"untrack", window_untrack, METH_O,
     PyDoc_STR("Untrack an object that cannot be part of a cycle, so that garbage collections skip it.")},
    {NULL, NULL, 0, NULL},
};

static PyObject *
imported(const char *module_name, const char *name)
{
    PyObject *module = PyErr_Occurred() ? NULL : PyImport_ImportModule(module_name);
    PyObject *found = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return found;
}

static int
window_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "monitel does not run in sub-interpreters");
        return -1;
    }
    value_hook = imported("monitel.value", "to_float");
    histogram_type = imported("monitel.histogram", "Histogram");
    snapshot_type = imported("monitel.snapshot", "Snapshot");
    reserved_type = imported("monitel.snapshot", "Reserved");
    str_log_closed = PyUnicode_InternFromString("_log_closed");
    str_monotonic_ns = PyUnicode_InternFromString("monotonic_ns");
    str_time_ns = PyUnicode_InternFromString("time_ns");
    PyObject *type = PyType_FromSpec(&accumulator_spec);
    if (value_hook == NULL || histogram_type == NULL || snapshot_type == NULL || reserved_type == NULL
        || str_log_closed == NULL || str_monotonic_ns == NULL || str_time_ns == NULL || type == NULL) {
        Py_XDECREF(type);
        return -1;
    }
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot window_slots[] = {
    {Py_mod_exec, window_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef window_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "monitel._window_c",
    .m_doc = PyDoc_STR("The open window of a Stat, in C."),
    .m_methods = window_functions,
    .m_slots = window_slots,
};

PyMODINIT_FUNC
PyInit__window_c(void)
{
    return PyModuleDef_Init(&window_module);
}
