/* Recorder of ranges in C. _ranges_py.py is its twin in Python, with the same behaviour.
 *
 * A Range is not tracked by the garbage collector, so a million of them do not slow collections down. This is safe
 * because a Range holds no reference that could lead back to it: its parent is older, and its label is only an address.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#include "../../_clock.h"
#include "../../_lock.h"

#ifdef Py_GIL_DISABLED
#define PER_THREAD _Thread_local
#else
#define PER_THREAD
#endif

typedef struct Range {
    PyObject_HEAD
    PyObject *name, *args, *track, *listeners;
    PyObject *error_type; /* a str; NULL for None */
    struct Range *parent;
    _Atomic(const void *) label; /* address of the record_function that began it; NULL after the end */
    int64_t start, end, epoch, step;
    unsigned long long number;
} Range;

/* The module cannot be imported in sub-interpreters, so process-wide state is safe. */
static PyTypeObject *range_type;
static struct {
    PyObject *began, *ended;   /* listeners, tuples of callables */
    _Atomic(PyObject *) clock; /* a test's clock; NULL: the system's */
    int64_t epoch;
} settings;
static Lock settings_lock;
static atomic_ullong last_number;
static PyObject *innermost; /* a ContextVar */
static PyObject *get_step, *track_of_thread, *track_of_task;
static _Atomic(PyObject *) get_running_loop, current_task; /* functions of asyncio; they stay after it is loaded */
static PyObject *str_monotonic_ns, *str_runners, *str_track;

/* ---- clock ---- */

/* Returns -1 with an exception set on error. */
static int64_t
reading(PyObject *clock)
{
    if (clock == NULL) {
        struct timespec moment;
        clock_gettime(MONOTONIC, &moment);
        return (int64_t)moment.tv_sec * 1000000000 + moment.tv_nsec;
    }
    PyObject *number = PyObject_CallMethodNoArgs(clock, str_monotonic_ns);
    int64_t ns = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    if (ns < 0 && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "a clock must not be negative, got %lld", (long long)ns);
    }
    return ns;
}

static int64_t
now(void)
{
    if (atomic_load_explicit(&settings.clock, memory_order_relaxed) == NULL) {
        return reading(NULL);
    }
    acquire(&settings_lock);
    PyObject *clock = Py_XNewRef(settings.clock);
    release(&settings_lock);
    int64_t ns = reading(clock);
    Py_XDECREF(clock);
    return ns;
}

/* ---- tracks ---- */

/* Returns 1 if asyncio is completely loaded (its last module is), 0 if not, -1 on error. */
static int
find_asyncio(void)
{
    if (atomic_load_explicit(&get_running_loop, memory_order_acquire) != NULL) {
        return 1;
    }
    int loaded = PyDict_Contains(PyImport_GetModuleDict(), str_runners);
    if (loaded <= 0) {
        return loaded;
    }
    PyObject *events = PyImport_ImportModule("asyncio.events");
    PyObject *tasks = events == NULL ? NULL : PyImport_ImportModule("asyncio.tasks");
    PyObject *task = tasks == NULL ? NULL : PyObject_GetAttrString(tasks, "current_task");
    PyObject *loop = task == NULL ? NULL : PyObject_GetAttrString(events, "_get_running_loop");
    Py_XDECREF(events);
    Py_XDECREF(tasks);
    if (loop == NULL) {
        Py_XDECREF(task);
        return -1;
    }
    acquire(&settings_lock);
    bool first = get_running_loop == NULL;
    if (first) {
        current_task = task;
        get_running_loop = loop; /* last: it is read without the lock */
    }
    release(&settings_lock);
    if (!first) {
        Py_DECREF(task);
        Py_DECREF(loop);
    }
    return 1;
}

/* Returns the task that runs in this thread, or None. */
static PyObject *
running_task(void)
{
    int asyncio = find_asyncio();
    if (asyncio <= 0) {
        return asyncio < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *loop = PyObject_CallNoArgs(get_running_loop);
    if (loop == NULL || loop == Py_None) {
        return loop;
    }
    PyObject *task = PyObject_CallOneArg(current_task, loop);
    Py_DECREF(loop);
    return task;
}

static PyObject *
current_track(void)
{
    PyObject *task = running_task();
    if (task == NULL) {
        return NULL;
    }
    if (task != Py_None) {
        PyObject *track = PyObject_CallOneArg(track_of_task, task);
        Py_DECREF(task);
        return track;
    }
    Py_DECREF(task);
    PyObject *local = PyThreadState_GetDict(); /* borrowed, as what is in it: only this thread changes it */
    PyObject *known = local == NULL ? NULL : PyDict_GetItemWithError(local, str_track);
    if (known != NULL) {
        return Py_NewRef(known);
    }
    PyObject *track = PyErr_Occurred() ? NULL : PyObject_CallNoArgs(track_of_thread);
    if (track != NULL && local != NULL && PyDict_SetItem(local, str_track, track) < 0) {
        Py_CLEAR(track);
    }
    return track;
}

/* ---- ranges ---- */

static inline const void *
label_of(const Range *range)
{
    return atomic_load_explicit(&range->label, memory_order_acquire);
}

/* Takes the label away; false if the range has ended. Of two threads that end a range, one does. */
static inline bool
take_label(Range *range)
{
#ifdef Py_GIL_DISABLED
    return atomic_exchange(&range->label, NULL) != NULL;
#else
    bool taken = label_of(range) != NULL;
    atomic_store_explicit(&range->label, NULL, memory_order_relaxed);
    return taken;
#endif
}

/* Returns the nearest range that has not ended, borrowed, or NULL: a range can end before the ranges within it. */
static Range *
running(Range *found)
{
    while (found != NULL && label_of(found) == NULL) {
        found = found->parent;
    }
    return found;
}

/* Stores a new reference, or NULL for none, in `found`. Returns -1 on error. Anyone can set the variable of a context to
 * anything: contextvars.copy_context() lists it. */
static int
get_innermost(Range **found)
{
    PyObject *value;
    if (PyContextVar_Get(innermost, NULL, &value) < 0) {
        return -1;
    }
    if (value != NULL && Py_TYPE(value) != range_type) {
        Py_CLEAR(value);
    }
    *found = (Range *)value;
    return 0;
}

static int
set_innermost(Range *range)
{
    PyObject *token = PyContextVar_Set(innermost, range == NULL ? Py_None : (PyObject *)range);
    Py_XDECREF(token);
    return token == NULL ? -1 : 0;
}

/* Gives new references to the listeners for beginnings, and in the range to those for its end. */
static PyObject *
take_settings(Range *range)
{
    acquire(&settings_lock);
    PyObject *began = Py_NewRef(settings.began);
    range->listeners = Py_NewRef(settings.ended);
    range->epoch = settings.epoch;
    release(&settings_lock);
    return began;
}

/* Also gives a new reference to the listeners for beginnings. */
static Range *
new_range(PyObject *name, PyObject *args, int64_t start, const void *label, PyObject **began)
{
    Range *around = NULL;
    PyObject *track = current_track();
    PyObject *step = track == NULL ? NULL : PyObject_CallNoArgs(get_step);
    int64_t number = step == NULL || step == Py_None ? -1 : PyLong_AsLongLong(step);
    Py_XDECREF(step);
    PyObject *text = step == NULL ? NULL : PyUnicode_CheckExact(name) ? Py_NewRef(name) : PyObject_Str(name);
    Range *self = text == NULL || get_innermost(&around) < 0 ? NULL : PyObject_New(Range, range_type);
    if (self == NULL) {
        Py_XDECREF(text);
        Py_XDECREF(track);
        Py_XDECREF(around);
        return NULL;
    }
    self->name = text;
    self->args = Py_NewRef(args);
    self->parent = (Range *)Py_XNewRef(running(around));
    self->track = track;
    *began = take_settings(self);
    self->error_type = NULL;
    atomic_init(&self->label, label);
    self->start = start;
    self->end = -1;
    self->step = number;
    self->number = atomic_fetch_add_explicit(&last_number, 1, memory_order_relaxed) + 1;
    Py_XDECREF(around);
    return self;
}

/* Calls each listener of a tuple to which the caller has a reference. Reports an Exception as unraisable; returns -1 for others, such as KeyboardInterrupt. */
static int
notify(PyObject *listeners, Range *range)
{
    int outcome = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(listeners); i++) {
        PyObject *result = PyObject_CallOneArg(PyTuple_GET_ITEM(listeners, i), (PyObject *)range);
        if (result != NULL) {
            Py_DECREF(result);
        }
        else if (PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_WriteUnraisable(PyTuple_GET_ITEM(listeners, i));
        }
        else {
            outcome = -1;
            break;
        }
    }
    return outcome;
}

/* Ends a range whose label the caller has taken. */
static int
finish(Range *range, int64_t end)
{
    Range *current;
    range->end = end;
    if (get_innermost(&current) < 0) {
        return -1;
    }
    int failed = current == range ? set_innermost(range->parent) : 0;
    Py_XDECREF(current);
    return failed < 0 ? -1 : notify(range->listeners, range);
}

/* Checks the number of arguments of a function. Returns false with an exception set. */
static bool
has_arguments(const char *function, Py_ssize_t nargs, Py_ssize_t least, Py_ssize_t most)
{
    if (nargs >= least && nargs <= most) {
        return true;
    }
    if (least == most) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, got %zd", function, most, nargs);
    }
    else {
        PyErr_Format(PyExc_TypeError, "%s() takes from %zd to %zd arguments, got %zd", function, least, most, nargs);
    }
    return false;
}

static PyObject *
ranges_begin(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!has_arguments("begin", nargs, 3, 3)) {
        return NULL;
    }
    int64_t start = now();
    PyObject *began = NULL;
    Range *self = start < 0 ? NULL : new_range(args[1], args[2], start, args[0], &began);
    if (self == NULL || set_innermost(self) < 0) {
        Py_XDECREF(began);
        Py_XDECREF(self);
        return NULL;
    }
    if (notify(began, self) < 0) { /* the block that the range was to enclose will not run */
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        if (take_label(self) && finish(self, start) < 0) {
            PyErr_Clear();
        }
        PyErr_Restore(type, value, traceback);
        Py_CLEAR(self);
    }
    Py_DECREF(began);
    return (PyObject *)self;
}

static PyObject *
ranges_end(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Range *current, *found;
    if (!has_arguments("end", nargs, 2, 3)) {
        return NULL;
    }
    int64_t end = now();
    if (end < 0 || get_innermost(&current) < 0) {
        return NULL;
    }
    for (found = current; found != NULL && label_of(found) != args[0]; found = found->parent) {
    }
    if (found == NULL && Py_TYPE(args[1]) == range_type) { /* the range began in another context */
        found = (Range *)args[1];
    }
    Py_XINCREF(found);
    Py_XDECREF(current);
    if (found == NULL || !take_label(found)) {
        Py_XDECREF(found);
        PyErr_SetString(PyExc_AssertionError, "Expected record to be set");
        return NULL;
    }
    if (nargs > 2) {
        found->error_type = Py_NewRef(args[2]);
    }
    int failed = finish(found, end);
    Py_DECREF(found);
    return failed < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
ranges_record_past(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!has_arguments("record_past", nargs, 5, 5)) {
        return NULL;
    }
    int64_t start = PyLong_AsLongLong(args[2]);
    int64_t end = start == -1 && PyErr_Occurred() ? -1 : PyLong_AsLongLong(args[3]);
    PyObject *began = NULL;
    Range *self = end == -1 && PyErr_Occurred() ? NULL : new_range(args[0], args[1], start, NULL, &began);
    if (self == NULL) {
        return NULL;
    }
    Range *around = self->parent;
    while (around != NULL && (label_of(around) == NULL || around->start > start)) {
        around = around->parent;
    }
    Py_XINCREF(around);
    Py_XSETREF(self->parent, around);
    if (args[4] != Py_None) {
        Py_SETREF(self->track, Py_NewRef(args[4]));
    }
    self->end = end;
    int failed = notify(began, self) < 0 || notify(self->listeners, self) < 0;
    Py_DECREF(began);
    Py_DECREF(self);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *
ranges_current(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    Range *current;
    if (get_innermost(&current) < 0) {
        return NULL;
    }
    PyObject *found = (PyObject *)running(current);
    found = Py_NewRef(found == NULL ? Py_None : found);
    Py_XDECREF(current);
    return found;
}

static PyObject *
ranges_now(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    int64_t ns = now();
    return ns < 0 ? NULL : PyLong_FromLongLong(ns);
}

static PyObject *
ranges_set_clock(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *clock;
    long long difference;
    if (!PyArg_ParseTuple(args, "OL:set_clock", &clock, &difference)) {
        return NULL;
    }
    acquire(&settings_lock);
    PyObject *previous = settings.clock;
    settings.clock = clock == Py_None ? NULL : Py_NewRef(clock);
    settings.epoch = difference;
    release(&settings_lock);
    Py_XDECREF(previous);
    Py_RETURN_NONE;
}

static PyObject *
ranges_set_listeners(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *beginnings, *ends;
    if (!PyArg_ParseTuple(args, "O!O!:set_listeners", &PyTuple_Type, &beginnings, &PyTuple_Type, &ends)) {
        return NULL;
    }
    acquire(&settings_lock);
    PyObject *previous[] = {settings.began, settings.ended};
    settings.began = Py_NewRef(beginnings);
    settings.ended = Py_NewRef(ends);
    release(&settings_lock);
    Py_DECREF(previous[0]);
    Py_DECREF(previous[1]);
    Py_RETURN_NONE;
}

static PyObject *
ranges_forget_track(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *local = PyThreadState_GetDict();
    if (local != NULL && PyDict_Contains(local, str_track) == 1 && PyDict_DelItem(local, str_track) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef ranges_functions[] = {
    {"begin", (PyCFunction)(void (*)(void))ranges_begin, METH_FASTCALL,
     PyDoc_STR("Begin a range with this label, name and args; return the Range.")},
    {"end", (PyCFunction)(void (*)(void))ranges_end, METH_FASTCALL,
     PyDoc_STR("End the innermost range of a label, or the given Range if the context has none; an error's type is kept.")},
    {"record_past", (PyCFunction)(void (*)(void))ranges_record_past, METH_FASTCALL,
     PyDoc_STR("Record a range that has ended, in a track (None: this one), within the running range that began before it.")},
    {"current", ranges_current, METH_NOARGS,
     PyDoc_STR("Return the innermost running range of this context, or None.")},
    {"now", ranges_now, METH_NOARGS, PyDoc_STR("Return the monotonic time in ns by the clock of ranges.")},
    {"set_clock", ranges_set_clock, METH_VARARGS,
     PyDoc_STR("Use this clock (None: the system's), and this offset in ns from its monotonic time to Unix time.")},
    {"forget_track", ranges_forget_track, METH_NOARGS,
     PyDoc_STR("Forget the track of this thread. Called in a forked child, where the thread has another id.")},
    {"set_listeners", ranges_set_listeners, METH_VARARGS,
     PyDoc_STR("Set the callbacks for beginnings and those for ends, two tuples.")},
    {NULL, NULL, 0, NULL},
};

/* ---- the type ---- */

/* A range whose last reference this thread has just released, while it frees the range within it. */
static PER_THREAD bool frees;
static PER_THREAD Range *orphan;

static void
range_dealloc(Range *self)
{
    if (frees) {
        orphan = self;
        return;
    }
    PyTypeObject *type = Py_TYPE(self);
    while (self != NULL) { /* not by recursion: tasks that create tasks make long chains of parents */
        Range *parent = self->parent;
        Py_DECREF(self->name);
        Py_DECREF(self->args);
        Py_DECREF(self->track);
        Py_DECREF(self->listeners);
        Py_XDECREF(self->error_type);
        PyObject_Free(self);
        Py_DECREF(type);
        self = NULL;
        if (parent != NULL) { /* releasing it runs nothing else */
            frees = true;
            Py_DECREF(parent);
            frees = false;
            self = orphan;
            orphan = NULL;
        }
    }
}

static PyObject *
range_start_ns(Range *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->epoch + self->start);
}

static PyObject *
range_end_ns(Range *self, void *Py_UNUSED(closure))
{
    return self->end < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(self->epoch + self->end);
}

static PyObject *
range_step(Range *self, void *Py_UNUSED(closure))
{
    return self->step < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(self->step);
}

static PyObject *
range_repr(Range *self)
{
    if (self->end < 0) {
        return PyUnicode_FromFormat("<Range %R in %S, running>", self->name, self->track);
    }
    return PyUnicode_FromFormat("<Range %R in %S, %lld ns>", self->name, self->track,
                                (long long)(self->end - self->start));
}

static PyMemberDef range_members[] = {
    {"name", T_OBJECT_EX, offsetof(Range, name), READONLY, PyDoc_STR("Name, a str.")},
    {"args", T_OBJECT_EX, offsetof(Range, args), READONLY,
     PyDoc_STR("Details as given to record_function, unchecked.")},
    {"parent", T_OBJECT, offsetof(Range, parent), READONLY, PyDoc_STR("The range around it when it began, or None.")},
    {"track", T_OBJECT_EX, offsetof(Range, track), READONLY, PyDoc_STR("Thread and task, a Track.")},
    {"error_type", T_OBJECT, offsetof(Range, error_type), READONLY,
     PyDoc_STR("Class name of the Exception that left it, or None.")},
    {"monotonic_start_ns", T_LONGLONG, offsetof(Range, start), READONLY,
     PyDoc_STR("Beginning, by the monotonic clock.")},
    {"monotonic_end_ns", T_LONGLONG, offsetof(Range, end), READONLY,
     PyDoc_STR("End, by the monotonic clock; -1 while it runs.")},
    {"number", T_ULONGLONG, offsetof(Range, number), READONLY,
     PyDoc_STR("Number of ranges that this process has recorded so far, with this one.")},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef range_properties[] = {
    {"start_ns", (getter)range_start_ns, NULL, PyDoc_STR("Beginning, in Unix ns."), NULL},
    {"end_ns", (getter)range_end_ns, NULL, PyDoc_STR("End, in Unix ns; None while it runs."), NULL},
    {"step", (getter)range_step, NULL, PyDoc_STR("monitel.get_step() when it began."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot range_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("A named stretch of time in one thread or asyncio task.")},
    {Py_tp_dealloc, range_dealloc},
    {Py_tp_repr, range_repr},
    {Py_tp_members, range_members},
    {Py_tp_getset, range_properties},
    {0, NULL},
};

static PyType_Spec range_spec = {
    .name = "monitel.profiler.ranges._ranges_c.Range",
    .basicsize = sizeof(Range),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = range_slots,
};

/* ---- the module ---- */

static PyObject *
attribute(const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *found = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return found;
}

static int
ranges_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "monitel does not run in sub-interpreters");
        return -1;
    }
    if (prepare_locks() < 0) {
        return -1;
    }
    str_monotonic_ns = PyUnicode_InternFromString("monotonic_ns");
    str_runners = PyUnicode_InternFromString("asyncio.runners");
    str_track = PyUnicode_InternFromString("monitel.profiler.track");
    settings.began = PyTuple_New(0);
    settings.ended = PyTuple_New(0);
    innermost = PyContextVar_New("monitel.profiler.range", NULL);
    range_type = (PyTypeObject *)PyType_FromSpec(&range_spec);
    if ((get_step = attribute("monitel._window", "get_step")) == NULL
        || (track_of_thread = attribute("monitel.profiler.ranges.tracks", "track_of_thread")) == NULL
        || (track_of_task = attribute("monitel.profiler.ranges.tracks", "track_of_task")) == NULL
        || str_monotonic_ns == NULL || str_runners == NULL || str_track == NULL || settings.began == NULL
        || settings.ended == NULL || innermost == NULL || range_type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, range_type);
}

static PyModuleDef_Slot ranges_slots[] = {
    {Py_mod_exec, ranges_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef ranges_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "monitel.profiler.ranges._ranges_c",
    .m_doc = PyDoc_STR("Recorder of ranges in C."),
    .m_methods = ranges_functions,
    .m_slots = ranges_slots,
};

PyMODINIT_FUNC
PyInit__ranges_c(void)
{
    return PyModuleDef_Init(&ranges_module);
}
