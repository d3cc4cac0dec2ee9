/* Recorder of ranges in C. _ranges_py.py is its twin in Python, with the same behaviour.
 *
 * A Range is not tracked by the garbage collector, so a million of them do not slow collections down. This is safe
 * because a Range holds no reference that could lead back to it: its parent is older, and its label is only an address.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>

typedef struct Range {
    PyObject_HEAD
    PyObject *name, *args, *track, *listeners;
    PyObject *error_type; /* a str; NULL for None */
    struct Range *parent;
    const void *label; /* address of the record_function that began it; NULL after the end */
    int64_t start, end, epoch, step;
} Range;

/* The module cannot be imported in sub-interpreters, so process-wide state is safe. */
static PyTypeObject *range_type;
static PyObject *began_listeners, *ended_listeners; /* tuples of callables */
static PyObject *injected_clock;                    /* a test's clock; NULL: the system's */
static int64_t epoch;
static PyObject *innermost; /* a ContextVar */
static PyObject *get_step, *track_of_thread, *track_of_task;
static PyObject *get_running_loop, *current_task; /* functions of asyncio, after it is loaded */
static PyObject *str_monotonic_ns, *str_runners, *str_track;

/* ---- clock ---- */

/* Returns -1 with an exception set on error; a clock never returns a negative time. */
static int64_t
now(void)
{
    if (injected_clock == NULL) {
        struct timespec moment;
        clock_gettime(CLOCK_MONOTONIC, &moment);
        return (int64_t)moment.tv_sec * 1000000000 + moment.tv_nsec;
    }
    PyObject *reading = PyObject_CallMethodNoArgs(injected_clock, str_monotonic_ns);
    int64_t ns = reading == NULL ? -1 : PyLong_AsLongLong(reading);
    Py_XDECREF(reading);
    return ns;
}

/* ---- tracks ---- */

/* Returns 1 if asyncio is completely loaded (its last module is), 0 if not, -1 on error. */
static int
find_asyncio(void)
{
    if (get_running_loop != NULL) {
        return 1;
    }
    int loaded = PyDict_Contains(PyImport_GetModuleDict(), str_runners);
    if (loaded <= 0) {
        return loaded;
    }
    PyObject *events = PyImport_ImportModule("asyncio.events");
    PyObject *tasks = events == NULL ? NULL : PyImport_ImportModule("asyncio.tasks");
    current_task = tasks == NULL ? NULL : PyObject_GetAttrString(tasks, "current_task");
    get_running_loop = current_task == NULL ? NULL : PyObject_GetAttrString(events, "_get_running_loop");
    Py_XDECREF(events);
    Py_XDECREF(tasks);
    return get_running_loop == NULL ? -1 : 1;
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
    PyObject *local = PyThreadState_GetDict(); /* borrowed */
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

/* Returns the nearest range that has not ended, borrowed, or NULL: a range can end before the ranges within it. */
static Range *
running(Range *found)
{
    while (found != NULL && found->label == NULL) {
        found = found->parent;
    }
    return found;
}

/* Stores a new reference, or NULL for none, in `found`. Returns -1 on error. */
static int
get_innermost(Range **found)
{
    PyObject *value;
    if (PyContextVar_Get(innermost, NULL, &value) < 0) {
        return -1;
    }
    if (value == NULL || value == Py_None) {
        Py_XDECREF(value);
        value = NULL;
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

static Range *
new_range(PyObject *name, PyObject *args, int64_t start, const void *label)
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
    self->listeners = Py_NewRef(ended_listeners);
    self->error_type = NULL;
    self->label = label;
    self->start = start;
    self->end = -1;
    self->epoch = epoch;
    self->step = number;
    Py_XDECREF(around);
    return self;
}

/* Calls each listener. Reports an Exception as unraisable; returns -1 for others, such as KeyboardInterrupt. */
static int
notify(PyObject *listeners, Range *range)
{
    PyObject *kept = Py_NewRef(listeners);
    int outcome = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kept); i++) {
        PyObject *result = PyObject_CallOneArg(PyTuple_GET_ITEM(kept, i), (PyObject *)range);
        if (result != NULL) {
            Py_DECREF(result);
        }
        else if (PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_WriteUnraisable(PyTuple_GET_ITEM(kept, i));
        }
        else {
            outcome = -1;
            break;
        }
    }
    Py_DECREF(kept);
    return outcome;
}

static int
finish(Range *range, int64_t end)
{
    Range *current;
    if (get_innermost(&current) < 0) {
        return -1;
    }
    range->end = end;
    range->label = NULL;
    int failed = current == range ? set_innermost(range->parent) : 0;
    Py_XDECREF(current);
    return failed < 0 ? -1 : notify(range->listeners, range);
}

static PyObject *
ranges_begin(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t Py_UNUSED(nargs))
{
    int64_t start = now();
    Range *self = start < 0 ? NULL : new_range(args[1], args[2], start, args[0]);
    if (self == NULL || set_innermost(self) < 0) {
        Py_XDECREF(self);
        return NULL;
    }
    if (notify(began_listeners, self) < 0) { /* the block that the range was to enclose will not run */
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        if (finish(self, start) < 0) {
            PyErr_Clear();
        }
        PyErr_Restore(type, value, traceback);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *
ranges_end(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Range *current, *found;
    int64_t end = now();
    if (end < 0 || get_innermost(&current) < 0) {
        return NULL;
    }
    for (found = current; found != NULL && found->label != args[0]; found = found->parent) {
    }
    if (found == NULL && Py_TYPE(args[1]) == range_type) { /* the range began in another context */
        found = (Range *)args[1];
    }
    Py_XINCREF(found);
    Py_XDECREF(current);
    if (found == NULL || found->label == NULL) {
        Py_XDECREF(found);
        PyErr_SetString(PyExc_AssertionError, "Expected record to be set");
        return NULL;
    }
    if (nargs > 2) {
        Py_XSETREF(found->error_type, Py_NewRef(args[2]));
    }
    int failed = finish(found, end);
    Py_DECREF(found);
    return failed < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
ranges_record_past(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t Py_UNUSED(nargs))
{
    int64_t start = PyLong_AsLongLong(args[2]);
    int64_t end = start == -1 && PyErr_Occurred() ? -1 : PyLong_AsLongLong(args[3]);
    Range *self = end == -1 && PyErr_Occurred() ? NULL : new_range(args[0], args[1], start, NULL);
    if (self == NULL) {
        return NULL;
    }
    Range *around = self->parent;
    while (around != NULL && (around->label == NULL || around->start > start)) {
        around = around->parent;
    }
    Py_XINCREF(around);
    Py_XSETREF(self->parent, around);
    if (args[4] != Py_None) {
        Py_SETREF(self->track, Py_NewRef(args[4]));
    }
    self->end = end;
    int failed = notify(began_listeners, self) < 0 || notify(self->listeners, self) < 0;
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
    epoch = difference;
    Py_XSETREF(injected_clock, clock == Py_None ? NULL : Py_NewRef(clock));
    Py_RETURN_NONE;
}

static PyObject *
ranges_set_listeners(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *beginnings, *ends;
    if (!PyArg_ParseTuple(args, "O!O!:set_listeners", &PyTuple_Type, &beginnings, &PyTuple_Type, &ends)) {
        return NULL;
    }
    Py_XSETREF(began_listeners, Py_NewRef(beginnings));
    Py_XSETREF(ended_listeners, Py_NewRef(ends));
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

static void
range_dealloc(Range *self)
{
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
        if (parent == NULL || Py_REFCNT(parent) > 1) {
            Py_XDECREF(parent);
            parent = NULL;
        }
        self = parent;
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
    str_monotonic_ns = PyUnicode_InternFromString("monotonic_ns");
    str_runners = PyUnicode_InternFromString("asyncio.runners");
    str_track = PyUnicode_InternFromString("monitel.profiler.track");
    began_listeners = PyTuple_New(0);
    ended_listeners = PyTuple_New(0);
    innermost = PyContextVar_New("monitel.profiler.range", NULL);
    range_type = (PyTypeObject *)PyType_FromSpec(&range_spec);
    if ((get_step = attribute("monitel._window", "get_step")) == NULL
        || (track_of_thread = attribute("monitel.profiler.ranges.tracks", "track_of_thread")) == NULL
        || (track_of_task = attribute("monitel.profiler.ranges.tracks", "track_of_task")) == NULL
        || str_monotonic_ns == NULL || str_runners == NULL || str_track == NULL || began_listeners == NULL
        || ended_listeners == NULL || innermost == NULL || range_type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, range_type);
}

static PyModuleDef_Slot ranges_slots[] = {
    {Py_mod_exec, ranges_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
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
