/* The open window of a Stat, in C. _window_py.py is the twin with the same behaviour in Python.
 *
 * Everything between two calls into Python is a step: with the GIL nothing interrupts it, and without the GIL a lock keeps
 * other threads out. A function that has called into Python (the value hook), or has released the lock, reads the
 * state again. A thread that needs both locks acquires windows_lock first.
 *
 * Time is divided into intervals of the window's length, at multiples of it on the monotonic clock. An interval ends at
 * its boundary. It has one window, or several if a flush closed one early. If max_samples closed it, further samples
 * of the interval are discarded.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* The clock of time.monotonic_ns(): C and Python compare and subtract times of each other. */
#ifdef __APPLE__
#define MONOTONIC CLOCK_UPTIME_RAW /* stops while the system sleeps, as CPython's mach_absolute_time() does */
#else
#define MONOTONIC CLOCK_MONOTONIC
#endif

/* For functions that add() must not inline, so that its common path saves no registers for rare cases. */
#if defined(__GNUC__)
#define APART __attribute__((noinline))
#define RARE __attribute__((noinline, cold))
#else
#define APART
#define RARE
#endif

#include "_lock.h"
#include "_buckets.h"
#include "_spin_lock.h"

/* The state of Welford's algorithm for the standard deviation of a window's samples. */
typedef struct {
    double mean, m2;
} Welford;

typedef struct Accumulator {
    PyObject_HEAD
    SpinLock lock;    /* for all fields but the list's; clock, clock_id and plain are constant after _open() */
    struct Accumulator *newer, *older; /* all live Accumulators, in the order of creation; here for expired() */
    int64_t boundary; /* end of the interval, monotonic ns; INT64_MIN until opened */
    int64_t count;
    int64_t capacity; /* samples that the open window takes: max_samples less earlier and pending samples of the interval */
    double sum, min, max, last;
    int64_t first_step, last_step; /* -1: no step was set */
    int64_t discarded, discarded_before; /* in total, and when the previous window closed */
    int64_t previous_end; /* Unix ns */
    int64_t window, max_samples;
    PyObject *clock; /* a test's clock, a memoryview of two numbers: monotonic ns and Unix ns; NULL: the system's clocks */
    clockid_t clock_id;
    bool plain;         /* the system's clocks, no histogram, no standard deviation: add() takes the short path */
    Buckets *buckets; /* NULL: no histogram was requested */
    Welford *welford;   /* NULL: no standard deviation was requested */
    PyObject *pending;      /* collects the pending samples of the open window; NULL: it has none */
    int64_t pending_count;  /* number of pending samples: not included in count, and subtracted from capacity */
    int64_t before_pending; /* count when the last pending sample was added */
    bool pending_first;     /* the window's first sample is pending */
    int64_t serial;         /* number of this Accumulator in the process, from 1 on */
    int64_t number;         /* of the open window, from 1 on */
#ifdef Py_GIL_DISABLED
    PyObject *reference; /* a weak one: only through it can another thread safely get a reference to this object */
    char apart[64];      /* two Stats share no line of the cache */
#endif
} Accumulator;

/* The numbers of a window, for monitel.stats.window. */
typedef struct Closed {
    struct Closed *next; /* in the list of windows that are being handed over */
    int64_t serial, number, previous_end, start, end, count, discarded, first_step, last_step;
    double sum, min, max, last, stddev;
    bool is_closed, has_stddev, has_histogram, pending_first, pending_last;
    int64_t pending_count;
    PyObject *pending; /* owned if the window is closed, until closed_object() has taken it; NULL: none */
    Buckets buckets; /* only there if has_histogram */
} Closed;

/* The module refuses sub-interpreters, so these exist once in a process. */
static Lock windows_lock; /* for the lists and their numbers */
static Accumulator *oldest, *newest;
static Closed *handed_over; /* windows that are closed and not forgotten, oldest first */
static Closed **handed_over_end = &handed_over;
static int64_t made;        /* Accumulators so far */
static Py_ssize_t alive;    /* Accumulators in the list */
static Lock hooks_lock;     /* for value_hook, and for make_table() */
static PyObject *value_hook;
static PyObject *str_log_closed;

/* ---- the training step ---- */

#ifdef Py_GIL_DISABLED
static _Atomic int64_t current_step = -1;
#else
static int64_t current_step = -1;
#endif

static inline int64_t
read_step(void)
{
#ifdef Py_GIL_DISABLED
    return atomic_load_explicit(&current_step, memory_order_relaxed);
#else
    return current_step;
#endif
}

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
    return MONOTONIC;
}

static const int64_t *
test_numbers(PyObject *clock)
{
    return PyMemoryView_GET_BUFFER(clock)->buf;
}

static inline int64_t
read_clock(const Accumulator *self)
{
    return self->clock == NULL ? read_system(self->clock_id) : test_numbers(self->clock)[0];
}

/* A moment on the fine clock. */
typedef struct {
    int64_t now, epoch; /* monotonic time, and the difference of the Unix time to it */
} Moment;

/* Reads a test's clock, or the system's clocks if that is NULL. */
static Moment
read_moment(PyObject *clock)
{
    int64_t unix_now = clock == NULL ? read_system(CLOCK_REALTIME) : test_numbers(clock)[1];
    int64_t now = clock == NULL ? read_system(MONOTONIC) : test_numbers(clock)[0];
    return (Moment){now, unix_now - now};
}

/* ---- the window ---- */

static inline void
collect(Accumulator *self, double x)
{
    int64_t step = read_step();
    if (self->count++ == 0) {
        self->min = self->max = x;
        self->first_step = step;
    }
    else if (x > self->max) {
        self->max = x;
    }
    else if (x < self->min) {
        self->min = x;
    }
    self->sum += x;
    self->last = x;
    self->last_step = step;
}

static inline void
collect_distribution(Accumulator *self, double x)
{
    if (self->buckets != NULL) {
        buckets_add(self->buckets, x);
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
    if (self->buckets != NULL) {
        buckets_empty(self->buckets);
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

/* Describes the open window as if it was closed: now, or at its boundary if that has passed. */
static void
describe_window(const Accumulator *self, Moment moment, Closed *closed)
{
    closed->serial = self->serial;
    closed->number = self->number;
    closed->is_closed = false;
    closed->previous_end = self->previous_end;
    closed->start = Py_MAX(self->boundary - self->window + moment.epoch, self->previous_end);
    closed->end = Py_MIN(moment.now, self->boundary) + moment.epoch;
    closed->end = Py_MAX(closed->end, closed->start + 1); /* times rise, even if the wall clock is set back */
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
    closed->has_histogram = self->buckets != NULL;
    if (closed->has_histogram) {
        closed->buckets = *self->buckets;
    }
    closed->pending = self->pending;
    closed->pending_count = self->pending_count;
    closed->pending_first = self->pending_first;
    closed->pending_last = self->before_pending == self->count;
}

#define NOW (-1) /* a time that no clock gives */

/* Closes the open window if its interval has ended at `tick`, or at once if that is NOW. `rolls`: starts the interval of
 * `tick` if the previous one has ended. 1: closed, and open_windows() includes it until forget(); 0: there was nothing to
 * close; -1: there is no memory. */
static int
close_window(Accumulator *self, int64_t tick, bool rolls, Closed **found)
{
    enter(&self->lock);
    bool ended = tick == NOW || tick >= self->boundary, closes = ended && !is_empty(self);
    if (ended && rolls && !closes) {
        start_interval(self, tick);
    }
    size_t size = self->buckets == NULL ? offsetof(Closed, buckets) : sizeof(Closed);
    leave(&self->lock);
    if (!closes) {
        return 0;
    }
    Moment moment = read_moment(self->clock);
    Closed *closed = PyMem_Malloc(size);
    if (closed == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    acquire(&windows_lock); /* for open_windows() each window is either open or handed over */
    enter(&self->lock);
    ended = tick == NOW || tick >= self->boundary; /* another thread may have closed it */
    closes = ended && !is_empty(self);
    if (closes) {
        describe_window(self, moment, closed);
        closed->is_closed = true;
        closed->next = NULL;
        *handed_over_end = closed;
        handed_over_end = &closed->next;
        self->number++;
        self->previous_end = closed->end;
        self->discarded_before = self->discarded;
        self->capacity -= self->count;
        start_empty(self);
    }
    if (ended && rolls) {
        start_interval(self, tick);
    }
    leave(&self->lock);
    release(&windows_lock);
    if (!closes) {
        PyMem_Free(closed);
    }
    *found = closed;
    return closes;
}

/* Removes one window, the one with this key, from those that are handed over; all windows if that is NULL. */
static void
forget_windows(const int64_t *key)
{
    acquire(&windows_lock);
    for (Closed **link = &handed_over; *link != NULL;) {
        Closed *closed = *link;
        if (key != NULL && (closed->serial != key[0] || closed->number != key[1])) {
            link = &closed->next;
            continue;
        }
        *link = closed->next;
        handed_over_end = closed->next == NULL ? link : handed_over_end;
        PyMem_Free(closed);
        if (key != NULL) {
            break;
        }
    }
    release(&windows_lock);
}

/* Closes the window of the interval that has ended, and starts the interval of `tick`. Returns as close_window(). */
static int
roll_over(Accumulator *self, int64_t tick, Closed **closed)
{
    enter(&self->lock);
    bool opened = self->window != 0;
    leave(&self->lock);
    if (!opened) {
        PyErr_SetString(PyExc_RuntimeError, "Stat.__init__() was not called: a subclass must call "
                                            "super().__init__(name, aggregations, window_size)");
        return -1;
    }
    return close_window(self, tick, true, closed);
}

static PyObject *
step_object(int64_t step)
{
    if (step < 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLongLong(step);
}

/* Bytes that grow; failed: there is no memory. */
typedef struct {
    char *start;
    size_t length, room;
    bool failed;
} Bytes;

static void
append(Bytes *bytes, const void *content, size_t length)
{
    if (bytes->length + length > bytes->room) {
        size_t room = 2 * (bytes->length + length) + 4096;
        char *grown = bytes->failed ? NULL : PyMem_Realloc(bytes->start, room);
        bytes->failed = grown == NULL;
        if (bytes->failed) {
            return;
        }
        bytes->start = grown;
        bytes->room = room;
    }
    memcpy(bytes->start + bytes->length, content, length);
    bytes->length += length;
}

/* Appends a window in the form that monitel.stats.window describes. */
static void
append_window(Bytes *bytes, const Closed *closed)
{
    int64_t flags = closed->is_closed | closed->has_stddev << 1 | closed->has_histogram << 2;
    struct {
        int64_t serial, number, flags, previous_end, start, end, count;
        double sum, min, max, last;
        int64_t discarded, first_step, last_step;
        double stddev;
    } fields = {closed->serial, closed->number, flags, closed->previous_end, closed->start, closed->end, closed->count,
                closed->sum, closed->min, closed->max, closed->last, closed->discarded, closed->first_step,
                closed->last_step, closed->has_stddev ? closed->stddev : 0.0};
    append(bytes, &fields, sizeof(fields));
    if (!closed->has_histogram) {
        return;
    }
    const Buckets *buckets = &closed->buckets;
    int64_t counts[] = {buckets->scale, (int64_t)buckets->zero_count, (int64_t)buckets->nonfinite};
    double totals[] = {buckets->sum, buckets->min, buckets->max};
    append(bytes, counts, sizeof(counts));
    append(bytes, totals, sizeof(totals));
    for (int i = 0; i < 2; i++) {
        const Side *side = &buckets->sides[i];
        int64_t first, last;
        bool any = occupied(side, &first, &last);
        int64_t range[] = {any ? first : 0, any ? last - first + 1 : 0};
        append(bytes, range, sizeof(range));
        append(bytes, side->counts + (any ? first - side->first : 0), (size_t)range[1] * sizeof(uint64_t));
    }
}

/* Makes the arguments of Stat._taken() and takes the window's reference to the pending samples: the number of the window,
 * its bytes, the collector of its pending samples or None, their number, whether the first and the last sample are pending.
 * NULL with an exception set. */
static PyObject *
closed_object(Closed *closed)
{
    Bytes bytes = {NULL, 0, 0, false};
    append_window(&bytes, closed);
    PyObject *pending = closed->pending == NULL ? Py_NewRef(Py_None) : closed->pending;
    closed->pending = NULL; /* before a garbage collection: a child that is forked in it frees all windows */
    PyObject *found = bytes.failed ? PyErr_NoMemory()
                                   : Py_BuildValue("(Ly#OLOO)", (long long)closed->number, bytes.start,
                                                   (Py_ssize_t)bytes.length, pending, (long long)closed->pending_count,
                                                   closed->pending_first ? Py_True : Py_False,
                                                   closed->pending_last ? Py_True : Py_False);
    Py_DECREF(pending);
    PyMem_Free(bytes.start);
    return found;
}

/* Ends add() after close_window() or roll_over(). The state is complete: self._log_closed() may add to the Stat or close it
 * again. */
static PyObject *
finish(Accumulator *self, int outcome, Closed *closed)
{
    if (outcome <= 0) {
        return outcome < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *arguments[2] = {(PyObject *)self, closed_object(closed)};
    PyObject *result = arguments[1] == NULL ? NULL : PyObject_VectorcallMethod(str_log_closed, arguments, 2, NULL);
    Py_XDECREF(arguments[1]);
    return result;
}

/* Ends a method that returns the closed window or None. */
static PyObject *
returned(int outcome, Closed *closed)
{
    return outcome > 0 ? closed_object(closed) : outcome < 0 ? NULL : Py_NewRef(Py_None);
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
    acquire(&hooks_lock);
    PyObject *hook = Py_NewRef(value_hook);
    release(&hooks_lock);
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
    Closed *closed = NULL;
    int outcome = 0;
    enter(&self->lock);
    bool ended = tick >= self->boundary;
    leave(&self->lock);
    if (ended && (outcome = roll_over(self, tick, &closed)) < 0) {
        return NULL;
    }
    enter(&self->lock);
    bool fits = self->count != self->capacity;
    if (fits) {
        collect(self, x);
        collect_distribution(self, x);
    }
    else {
        self->discarded++;
    }
    bool full = fits && self->count == self->capacity;
    leave(&self->lock);
    if (full && outcome == 0) { /* one window per add(), the next at its boundary */
        outcome = close_window(self, NOW, false, &closed);
    }
    return finish(self, outcome, closed);
}

/* True if a sample at `tick` neither starts an interval nor reaches the sample limit. */
static inline bool
is_within(const Accumulator *self, int64_t tick)
{
    return tick < self->boundary && self->count + 1 < self->capacity;
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
    enter(&self->lock);
    if (!is_within(self, tick)) {
        leave(&self->lock);
        return add_at_boundary(self, tick, x);
    }
    collect(self, x);
    collect_distribution(self, x);
    leave(&self->lock);
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
    enter(&self->lock);
    if (!is_within(self, tick)) {
        leave(&self->lock);
        return add_at_boundary(self, tick, PyFloat_AS_DOUBLE(value));
    }
    collect(self, PyFloat_AS_DOUBLE(value));
    leave(&self->lock);
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
    if (!PyArg_ParseTuple(args, "LLOpp:_open", &window, &max_samples, &clock, &histogram, &stddev)) {
        return NULL;
    }
    if (window < 1 || max_samples < 1) {
        PyErr_Format(PyExc_ValueError, "the length of a window and max_samples must be at least 1, got %lld and %lld",
                     window, max_samples);
        return NULL;
    }
    if (clock == Py_None) {
        clock = NULL;
    }
    Moment moment = read_moment(clock);
    Buckets *buckets = histogram ? PyMem_New(Buckets, 1) : NULL;
    Welford *welford = stddev ? PyMem_New(Welford, 1) : NULL;
    bool enough = (!histogram || buckets != NULL) && (!stddev || welford != NULL);
    if (histogram) {
        acquire(&hooks_lock);
        make_table();
        release(&hooks_lock);
    }
    enter(&self->lock);
    bool opens = enough && self->window == 0; /* threads may call __init__() of one Stat: the first call counts */
    if (opens) {
        self->clock = Py_XNewRef(clock);
        self->clock_id = choose_clock(window);
        self->plain = clock == NULL && !histogram && !stddev;
        self->buckets = buckets;
        self->welford = welford;
        self->window = window;
        self->max_samples = max_samples;
        self->previous_end = moment.now + moment.epoch;
        start_empty(self);
        start_interval(self, moment.now);
    }
    leave(&self->lock);
    if (!opens) {
        PyMem_Free(buckets);
        PyMem_Free(welford);
    }
    return enough ? Py_NewRef(Py_None) : PyErr_NoMemory();
}

static PyObject *
accumulator_reserve(Accumulator *self, PyObject *samples)
{
    Closed *closed = NULL;
    PyObject *collector = NULL;
    int outcome = roll_over(self, read_clock(self), &closed);
    if (outcome < 0) {
        return NULL;
    }
    enter(&self->lock);
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
    }
    bool full = collector != NULL && self->count == self->capacity;
    leave(&self->lock);
    if (full && outcome == 0) {
        outcome = close_window(self, NOW, false, &closed);
    }
    collector = collector == NULL ? Py_NewRef(Py_None) : collector;
    return Py_BuildValue("(NN)", collector, returned(outcome, closed));
}

static PyObject *
accumulator_close(Accumulator *self, PyObject *Py_UNUSED(ignored))
{
    Closed *closed = NULL;
    int outcome = close_window(self, NOW, false, &closed);
    return returned(outcome, closed);
}

/* True if the window has samples, and its interval has ended at `tick`. */
static bool
has_ended(Accumulator *self, int64_t tick)
{
    enter(&self->lock);
    bool found = tick >= self->boundary && !is_empty(self);
    leave(&self->lock);
    return found;
}

static PyObject *
accumulator_close_expired(Accumulator *self, PyObject *Py_UNUSED(ignored))
{
    Closed *closed = NULL;
    int outcome = close_window(self, read_clock(self), false, &closed);
    return returned(outcome, closed);
}

static PyObject *
accumulator_reset(Accumulator *self, PyObject *Py_UNUSED(ignored))
{
    forget_windows(NULL); /* the parent logs them */
    enter(&self->lock);
    PyObject *pending = self->pending;
    start_empty(self);
    self->capacity = self->max_samples;
    self->discarded = self->discarded_before = 0;
    leave(&self->lock);
    Py_XDECREF(pending);
    Py_RETURN_NONE;
}

static PyMethodDef accumulator_methods[] = {
    {"_open", (PyCFunction)(void (*)(void))accumulator_open, METH_VARARGS,
     PyDoc_STR("Start collecting. Arguments: the length of an interval in ns, max_samples, a test's clock (a\n"
               "memoryview of two 64-bit integers: monotonic and Unix ns) or None, whether to collect a histogram, whether to\n"
               "collect a standard deviation.")},
    {"_reserve", (PyCFunction)(void (*)(void))accumulator_reserve, METH_O,
     PyDoc_STR("Reserve a slot for a sample whose value is not known yet. The argument collects the window's pending\n"
               "samples if this one is the first. Return the collector, None if the window is full; and the window\n"
               "that was closed, as _close().")},
    {"_close", (PyCFunction)(void (*)(void))accumulator_close, METH_NOARGS,
     PyDoc_STR("Close the open window: now, or at its boundary if that has passed. Return the arguments of _taken();\n"
               "None if the window is empty.")},
    {"_close_expired", (PyCFunction)(void (*)(void))accumulator_close_expired, METH_NOARGS,
     PyDoc_STR("Close the open window if its boundary has passed. Return as _close().")},
    {"_reset", (PyCFunction)(void (*)(void))accumulator_reset, METH_NOARGS,
     PyDoc_STR("Discard the open window without an event. Called in a forked child: the parent logs these samples.")},
    {NULL, NULL, 0, NULL},
};

/* Reads a number that other threads change. */
static int64_t
read_number(Accumulator *self, const int64_t *number)
{
    enter(&self->lock);
    int64_t found = *number;
    leave(&self->lock);
    return found;
}

static PyObject *
accumulator_count(Accumulator *self, void *Py_UNUSED(closure))
{
    enter(&self->lock);
    int64_t count = self->count + self->pending_count;
    leave(&self->lock);
    return PyLong_FromLongLong(count);
}

static PyObject *
accumulator_max_samples(Accumulator *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(read_number(self, &self->max_samples));
}

static PyObject *
accumulator_window_ns(Accumulator *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(read_number(self, &self->window));
}

static PyObject *
accumulator_serial(Accumulator *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->serial);
}

static PyObject *
accumulator_discarded(Accumulator *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(read_number(self, &self->discarded));
}

static PyGetSetDef accumulator_properties[] = {
    {"count", (getter)accumulator_count, NULL, PyDoc_STR("Number of samples in the open window."), NULL},
    {"discarded", (getter)accumulator_discarded, NULL,
     PyDoc_STR("Number of samples that max_samples has kept out so far, in this process."), NULL},
    {"max_samples", (getter)accumulator_max_samples, NULL,
     PyDoc_STR("The most samples in an interval of the window's length."), NULL},
    {"_serial", (getter)accumulator_serial, NULL, PyDoc_STR("Number of this Stat in the process, from 1 on."), NULL},
    {"_window_ns", (getter)accumulator_window_ns, NULL, PyDoc_STR("Length of an interval."), NULL},
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
    self->clock_id = MONOTONIC;
    self->plain = true;
    self->number = 1;
#ifdef Py_GIL_DISABLED
    self->reference = PyWeakref_NewRef((PyObject *)self, NULL);
    if (self->reference == NULL) {
        Py_DECREF(self);
        return NULL;
    }
#endif
    acquire(&windows_lock);
    self->serial = ++made;
    self->older = newest;
    *(newest == NULL ? &oldest : &newest->newer) = self;
    newest = self;
    alive++;
    release(&windows_lock);
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
    if (self->serial != 0) { /* it is in the list */
        acquire(&windows_lock);
        *(self->older == NULL ? &oldest : &self->older->newer) = self->newer;
        *(self->newer == NULL ? &newest : &self->newer->older) = self->older;
        alive--;
        release(&windows_lock);
    }
#ifdef Py_GIL_DISABLED
    Py_CLEAR(self->reference);
#endif
    Py_CLEAR(self->clock);
    Py_CLEAR(self->pending);
    PyMem_Free(self->buckets);
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
    .name = "monitel.stats._window_c.Accumulator",
    .basicsize = sizeof(Accumulator),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = accumulator_slots,
};

/* ---- functions ---- */

#ifdef Py_GIL_DISABLED

/* Returns the weak references to all live Accumulators, oldest first; NULL with an exception set. */
static PyObject **
references(Py_ssize_t *length)
{
    PyObject **found = NULL;
    for (Py_ssize_t room = -1;;) {
        acquire(&windows_lock);
        bool enough = alive <= room;
        *length = 0;
        for (const Accumulator *self = oldest; enough && self != NULL; self = self->newer) {
            found[(*length)++] = Py_NewRef(self->reference);
        }
        room = alive + 64; /* other threads make more */
        release(&windows_lock);
        if (enough) {
            return found;
        }
        PyMem_Free(found);
        found = PyMem_New(PyObject *, (size_t)room);
        if (found == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
    }
}

static PyObject *
window_live(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    Py_ssize_t length;
    PyObject **weak = references(&length);
    PyObject *found = weak == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; weak != NULL && i < length; i++) {
        PyObject *self = NULL; /* it stays NULL if the Stat is being deallocated */
        if (found != NULL && (PyWeakref_GetRef(weak[i], &self) < 0 || (self != NULL && PyList_Append(found, self) < 0))) {
            Py_CLEAR(found);
        }
        Py_XDECREF(self);
        Py_DECREF(weak[i]);
    }
    PyMem_Free(weak);
    return found;
}

#else

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

#endif

static PyObject *
window_expired(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *stats = window_live(NULL, NULL);
    PyObject *found = stats == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(stats); i++) {
        Accumulator *self = (Accumulator *)PyList_GET_ITEM(stats, i);
        if (has_ended(self, read_clock(self)) && PyList_Append(found, (PyObject *)self) < 0) {
            Py_CLEAR(found);
        }
    }
    Py_XDECREF(stats);
    return found;
}

/* Appends the windows that are handed over, and the open windows of Stats, all of them at one moment. Windows of pending
 * samples only have no numbers yet, and are left out. */
static void
append_windows(PyObject *stats, Bytes *bytes, Bytes *serials)
{
    Closed described;
    Moment system = read_moment(NULL);
    acquire(&windows_lock);
    for (const Closed *closed = handed_over; closed != NULL; closed = closed->next) {
        if (closed->count > 0) {
            append_window(bytes, closed);
            append(serials, &closed->serial, sizeof(closed->serial));
        }
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(stats); i++) {
        Accumulator *self = (Accumulator *)PyList_GET_ITEM(stats, i);
        enter(&self->lock);
        bool any = self->count > 0;
        if (any) {
            describe_window(self, self->clock == NULL ? system : read_moment(self->clock), &described);
        }
        leave(&self->lock);
        if (any) {
            append_window(bytes, &described);
            append(serials, &described.serial, sizeof(described.serial));
        }
    }
    release(&windows_lock);
}

/* Makes a tuple of integers. */
static PyObject *
integers(const Bytes *bytes)
{
    Py_ssize_t length = (Py_ssize_t)(bytes->length / sizeof(int64_t));
    PyObject *found = PyTuple_New(length);
    for (Py_ssize_t i = 0; found != NULL && i < length; i++) {
        int64_t value;
        memcpy(&value, bytes->start + (size_t)i * sizeof(value), sizeof(value));
        PyObject *number = PyLong_FromLongLong(value);
        if (number == NULL) {
            Py_CLEAR(found);
        }
        else {
            PyTuple_SET_ITEM(found, i, number);
        }
    }
    return found;
}

static PyObject *
window_open_windows(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    Bytes bytes = {NULL, 0, 0, false}, serials = {NULL, 0, 0, false};
    PyObject *stats = window_live(NULL, NULL);
    PyObject *found = NULL;
    if (stats != NULL) {
        append_windows(stats, &bytes, &serials);
        found = bytes.failed || serials.failed
                    ? PyErr_NoMemory()
                    : Py_BuildValue("(y#N)", bytes.length ? bytes.start : "", (Py_ssize_t)bytes.length, integers(&serials));
    }
    PyMem_Free(bytes.start);
    PyMem_Free(serials.start);
    Py_XDECREF(stats);
    return found;
}

static PyObject *
window_forget(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long serial, number;
    if (!PyArg_ParseTuple(args, "LL:forget", &serial, &number)) {
        return NULL;
    }
    forget_windows((int64_t[]){serial, number});
    Py_RETURN_NONE;
}

static bool
is_accumulator_type(PyObject *object)
{
    PyTypeObject *type = PyType_Check(object) ? (PyTypeObject *)object : NULL;
    while (type != NULL && type->tp_new != accumulator_new) {
        type = type->tp_base;
    }
    return type != NULL;
}

static PyObject *
window_own_add(PyObject *Py_UNUSED(module), PyObject *type)
{
    if (!is_accumulator_type(type)) { /* add() would take its instances for Accumulators */
        PyErr_Format(PyExc_TypeError, "own_add() takes a subclass of Accumulator, got %R", type);
        return NULL;
    }
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
    acquire(&hooks_lock);
    PyObject *previous = value_hook;
    value_hook = Py_NewRef(hook);
    release(&hooks_lock);
    return previous;
}

static PyObject *
window_set_step(PyObject *Py_UNUSED(module), PyObject *step)
{
    int64_t number = step == Py_None ? -1 : PyLong_AsLongLong(step);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
#ifdef Py_GIL_DISABLED
    atomic_store_explicit(&current_step, number, memory_order_relaxed);
#else
    current_step = number;
#endif
    Py_RETURN_NONE;
}

static PyObject *
window_get_step(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return step_object(read_step());
}

static PyMethodDef window_functions[] = {
    {"live", window_live, METH_NOARGS, PyDoc_STR("Return all live Stats, oldest first.")},
    {"expired", window_expired, METH_NOARGS,
     PyDoc_STR("Return the live Stats that have samples of an interval that has ended, oldest first.")},
    {"open_windows", window_open_windows, METH_NOARGS,
     PyDoc_STR("Return the windows that are being handed over, and the open windows of live Stats, all of them at one\n"
               "moment: as bytes for monitel.stats.window, and the serial numbers of their Stats, in the same order.")},
    {"forget", window_forget, METH_VARARGS,
     PyDoc_STR("Remove a window, by the serial number of its Stat and its number, from those that are handed over.")},
    {"own_add", window_own_add, METH_O,
     PyDoc_STR("Set add() on the class itself: CPython calls an inherited C method more slowly.")},
    {"set_value_hook", window_set_value_hook, METH_O,
     PyDoc_STR("Set the hook(stat, value) -> float | None that converts values, and return the previous one.")},
    {"set_step", window_set_step, METH_O, PyDoc_STR("Set the training step, an int, or None.")},
    {"get_step", window_get_step, METH_NOARGS, PyDoc_STR("Return the training step; None when never set.")},
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
    if (prepare_locks() < 0) {
        return -1;
    }
    value_hook = imported("monitel.stats._window_py", "to_float");
    str_log_closed = PyUnicode_InternFromString("_log_closed");
    PyObject *type = PyType_FromSpec(&accumulator_spec);
    if (value_hook == NULL || str_log_closed == NULL || type == NULL) {
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
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef window_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "monitel.stats._window_c",
    .m_doc = PyDoc_STR("The open window of a Stat, in C."),
    .m_methods = window_functions,
    .m_slots = window_slots,
};

PyMODINIT_FUNC
PyInit__window_c(void)
{
    return PyModuleDef_Init(&window_module);
}
