/* The activities of one thread, which divide its time, in C. _activities_py.py is the twin in Python.
 *
 * A step, from acquire() to release(), calls no Python and releases no reference, so nothing can interrupt it:
 * destructors, signal handlers and other threads always find sums that add up.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "_lock.h"

#ifdef CLOCK_BOOTTIME
#define CLOCK CLOCK_BOOTTIME
#else
#define CLOCK CLOCK_MONOTONIC
#endif

enum {
    NAMES = 128, /* activities.py gives fewer */
    DEPTH = 256, /* of nested activities; deeper ones are ignored */
};

typedef struct Activity Activity;

typedef struct {
    PyObject *name;
    int64_t total_ns;
    bool ends_startup;
} Slot;

typedef struct {
    PyObject_HEAD
    PyObject *slot_of_name; /* dict: name to index */
    PyObject *new_name, *decorate, *clock; /* clock is NULL: the system's */
    Slot slots[NAMES];
    Activity *stack[DEPTH]; /* entered; not owned: an activity leaves when it is deallocated */
    int names, depth;
    int between; /* slot of the time without an activity */
    int after_startup; /* slot that replaces it after startup; -1 when startup is over */
    bool runs;
    unsigned long owner;
    int64_t start_ns, since_ns, changed_ns, ignored;
    Lock lock;
} Activities;

struct Activity {
    PyObject_HEAD
    Activities *activities;
    int slot;
    int ignored; /* entered without effect, and not left yet */
};

static PyTypeObject *activity_type;

/* How often the main thread has executed a call that was scheduled for it. */
static struct {
    int64_t calls;
    bool scheduled;
    Lock lock;
} pulse;

static int64_t
system_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Nanoseconds of the clock; -1: an exception is set. */
static int64_t
reading(Activities *self)
{
    if (self->clock == NULL) {
        return system_now();
    }
    PyObject *number = PyObject_CallNoArgs(self->clock);
    if (number == NULL) {
        return -1;
    }
    int64_t now = PyLong_AsLongLong(number);
    Py_DECREF(number);
    return now;
}

/* In a step: the current activity. */
static int
current_slot(const Activities *self)
{
    return self->depth > 0 ? self->stack[self->depth - 1]->slot : self->between;
}

/* In a step: give the time up to now to the current activity. */
static void
advance(Activities *self, int64_t now_ns)
{
    if (self->runs && now_ns > self->since_ns) {
        self->slots[current_slot(self)].total_ns += now_ns - self->since_ns;
        self->since_ns = now_ns;
    }
}

/* In a step: let the owner enter an activity; false if it has no effect. */
static bool
entered(Activities *self, Activity *activity, int64_t now_ns)
{
    if (!self->runs || self->depth == DEPTH) {
        self->ignored += self->runs;
        return false;
    }
    advance(self, now_ns);
    if (self->after_startup >= 0 && self->slots[activity->slot].ends_startup) {
        self->between = self->after_startup;
        self->after_startup = -1;
    }
    self->stack[self->depth++] = activity;
    self->changed_ns = self->since_ns;
    return true;
}

/* In a step: remove the innermost entry of an activity; false if there is none. */
static bool
removed(Activities *self, const Activity *activity)
{
    for (int i = self->depth - 1; i >= 0; i--) {
        if (self->stack[i] == activity) {
            for (int above = i + 1; above < self->depth; above++) {
                self->stack[above - 1] = self->stack[above];
            }
            self->depth--;
            self->changed_ns = self->since_ns;
            return true;
        }
    }
    return false;
}

static PyObject *
activity_enter(Activity *self, PyObject *Py_UNUSED(arguments))
{
    Activities *activities = self->activities;
    int64_t now_ns = reading(activities);
    if (now_ns < 0 && PyErr_Occurred()) {
        return NULL;
    }
    acquire(&activities->lock);
    bool owns = activities->owner == PyThread_get_thread_ident();
    if (!owns) {
        activities->ignored += activities->runs;
    }
    self->ignored += !(owns && entered(activities, self, now_ns));
    release(&activities->lock);
    return Py_NewRef((PyObject *)self);
}

static PyObject *
activity_exit(Activity *self, PyObject *const *Py_UNUSED(exception), Py_ssize_t Py_UNUSED(count))
{
    Activities *activities = self->activities;
    int64_t now_ns = reading(activities);
    if (now_ns < 0 && PyErr_Occurred()) {
        return NULL;
    }
    acquire(&activities->lock);
    bool owns = activities->owner == PyThread_get_thread_ident();
    if (!owns && self->ignored > 0) {
        self->ignored--;
    }
    else {
        advance(activities, now_ns);
        if (!removed(activities, self) && self->ignored > 0) {
            self->ignored--;
        }
    }
    release(&activities->lock);
    Py_RETURN_NONE;
}

static PyObject *
activity_call(Activity *self, PyObject *arguments, PyObject *named)
{
    PyObject *function;
    if (named != NULL && PyDict_GET_SIZE(named) > 0) {
        PyErr_SetString(PyExc_TypeError, "an activity decorates one function");
        return NULL;
    }
    if (!PyArg_UnpackTuple(arguments, "activity", 1, 1, &function)) {
        return NULL;
    }
    Activities *activities = self->activities;
    return PyObject_CallFunctionObjArgs(activities->decorate, function, activities->slots[self->slot].name, NULL);
}

static PyObject *
activity_name(Activity *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->activities->slots[self->slot].name);
}

static PyObject *
activity_repr(Activity *self)
{
    return PyUnicode_FromFormat("activity(%R)", self->activities->slots[self->slot].name);
}

static void
activity_dealloc(Activity *self)
{
    Activities *activities = self->activities;
    acquire(&activities->lock);
    if (activities->depth > 0) { /* it may be entered: it is over. A destructor calls no Python, so no clock of a test */
        advance(activities, activities->clock == NULL ? system_now() : 0);
        while (removed(activities, self)) {
        }
    }
    release(&activities->lock);
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
    Py_DECREF(activities);
}

/* The slot of a known name; -1: it is not known, or an exception is set. The dict only grows, and keeps the number. */
static int
known_slot(Activities *self, PyObject *name)
{
    PyObject *slot = PyDict_GetItemWithError(self->slot_of_name, name);
    return slot == NULL ? -1 : (int)PyLong_AsLong(slot);
}

/* The slot of a name; -1: an exception is set. The first time a hook decides under which name it counts. */
static int
slot_of(Activities *self, PyObject *name)
{
    int slot = PyUnicode_CheckExact(name) ? known_slot(self, name) : -1;
    if (slot >= 0 || PyErr_Occurred()) {
        return slot;
    }
    PyObject *answer = PyObject_CallOneArg(self->new_name, name);
    PyObject *given, *counted = NULL;
    int ends_startup;
    if (answer != NULL && PyTuple_Check(answer) && PyArg_ParseTuple(answer, "Up", &given, &ends_startup)) {
        counted = PyUnicode_FromObject(given); /* a str, of which the hash calls no Python, not an instance of a subclass */
    }
    else if (answer != NULL && !PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError, "new_name() must return a tuple, got %R", answer);
    }
    Py_XDECREF(answer);
    if (counted == NULL) {
        return -1;
    }
    acquire(&self->lock); /* a small int and a dict of str call no Python */
    slot = known_slot(self, counted);
    if (slot < 0 && self->names < NAMES) {
        PyObject *index = PyLong_FromLong(self->names);
        self->slots[self->names] = (Slot){counted, 0, ends_startup != 0}; /* first: others find it without the lock */
        if (index != NULL && PyDict_SetItem(self->slot_of_name, counted, index) == 0) {
            Py_INCREF(counted);
            slot = self->names++;
        }
        Py_XDECREF(index);
    }
    release(&self->lock);
    Py_DECREF(counted);
    if (slot < 0 && !PyErr_Occurred()) {
        PyErr_Format(PyExc_RuntimeError, "there is no room for more than %d names", NAMES);
    }
    return slot;
}

static PyObject *
activities_activity(Activities *self, PyObject *name)
{
    int slot = slot_of(self, name);
    if (slot < 0) {
        return NULL;
    }
    Activity *made = PyObject_New(Activity, activity_type);
    if (made != NULL) {
        made->activities = (Activities *)Py_NewRef((PyObject *)self);
        made->slot = slot;
        made->ignored = 0;
    }
    return (PyObject *)made;
}

static PyObject *
activities_enter_for_owner(Activities *self, PyObject *arguments)
{
    PyObject *name, *changed = Py_None;
    if (!PyArg_ParseTuple(arguments, "O|O", &name, &changed)) {
        return NULL;
    }
    int64_t changed_ns = changed == Py_None ? 0 : PyLong_AsLongLong(changed);
    PyObject *made = PyErr_Occurred() ? NULL : activities_activity(self, name);
    int64_t now_ns = made == NULL ? -1 : reading(self);
    if (PyErr_Occurred()) {
        Py_XDECREF(made);
        return NULL;
    }
    acquire(&self->lock);
    bool unchanged = changed == Py_None || changed_ns == self->changed_ns;
    bool enters = unchanged && entered(self, (Activity *)made, now_ns);
    release(&self->lock);
    if (enters) {
        return made;
    }
    Py_DECREF(made);
    Py_RETURN_NONE;
}

static PyObject *
activities_position(Activities *self, PyObject *Py_UNUSED(arguments))
{
    acquire(&self->lock);
    bool runs = self->runs;
    unsigned long owner = self->owner;
    int64_t changed_ns = self->changed_ns;
    PyObject *name = runs ? self->slots[current_slot(self)].name : NULL; /* it lives as long as self */
    release(&self->lock);
    return runs ? Py_BuildValue("(kOL)", owner, name, (long long)changed_ns) : Py_BuildValue("(isi)", 0, "", 0);
}

static PyObject *
activities_begin(Activities *self, PyObject *arguments)
{
    long long start_ns;
    PyObject *first, *later;
    if (!PyArg_ParseTuple(arguments, "LUU", &start_ns, &first, &later)) {
        return NULL;
    }
    int first_slot = slot_of(self, first);
    int later_slot = first_slot < 0 ? -1 : slot_of(self, later);
    int64_t now_ns = later_slot < 0 ? -1 : reading(self);
    if (PyErr_Occurred()) {
        return NULL;
    }
    acquire(&self->lock);
    for (int i = 0; i < self->names; i++) {
        self->slots[i].total_ns = 0;
    }
    self->between = first_slot;
    self->after_startup = later_slot;
    self->depth = 0;
    self->ignored = 0;
    self->runs = true;
    self->owner = PyThread_get_thread_ident();
    self->start_ns = self->since_ns = self->changed_ns = start_ns < now_ns ? start_ns : now_ns;
    release(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
activities_stop(Activities *self, PyObject *Py_UNUSED(arguments))
{
    acquire(&self->lock);
    self->runs = false;
    self->depth = 0;
    release(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
activities_end_startup(Activities *self, PyObject *arguments)
{
    PyObject *name;
    int takes_over = 1;
    if (!PyArg_ParseTuple(arguments, "O|p", &name, &takes_over)) {
        return NULL;
    }
    int slot = slot_of(self, name);
    int64_t now_ns = slot < 0 ? -1 : reading(self);
    if (PyErr_Occurred()) {
        return NULL;
    }
    acquire(&self->lock);
    advance(self, now_ns);
    self->between = slot;
    self->after_startup = -1;
    if (takes_over && self->owner != PyThread_get_thread_ident()) {
        self->owner = PyThread_get_thread_ident();
        while (self->depth > 0) {
            self->stack[--self->depth]->ignored++; /* now it is an activity of another thread */
        }
    }
    self->changed_ns = self->since_ns;
    release(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
activities_read(Activities *self, PyObject *Py_UNUSED(arguments))
{
    int64_t now_ns = reading(self);
    if (now_ns < 0 && PyErr_Occurred()) {
        return NULL;
    }
    Slot found[NAMES];
    acquire(&self->lock);
    bool runs = self->runs;
    advance(self, now_ns);
    int names = self->names;
    for (int i = 0; i < names; i++) {
        found[i] = self->slots[i]; /* a name lives as long as self */
    }
    int current = current_slot(self);
    int64_t elapsed_ns = self->since_ns - self->start_ns, ignored = self->ignored;
    release(&self->lock);
    if (!runs) {
        Py_RETURN_NONE;
    }
    PyObject *totals = PyDict_New();
    for (int i = 0; totals != NULL && i < names; i++) {
        if (found[i].total_ns > 0 || i == current) {
            PyObject *total = PyLong_FromLongLong(found[i].total_ns);
            if (total == NULL || PyDict_SetItem(totals, found[i].name, total) != 0) {
                Py_CLEAR(totals);
            }
            Py_XDECREF(total);
        }
    }
    if (totals == NULL) {
        return NULL;
    }
    return Py_BuildValue("(LNOL)", (long long)elapsed_ns, totals, found[current].name, (long long)ignored);
}

static PyObject *
activities_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    static char *names[] = {"new_name", "decorate", "clock", NULL};
    PyObject *new_name, *decorate, *clock = Py_None;
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "OO|O", names, &new_name, &decorate, &clock)) {
        return NULL;
    }
    Activities *self = (Activities *)type->tp_alloc(type, 0); /* zeroed */
    if (self == NULL) {
        return NULL;
    }
    self->new_name = Py_NewRef(new_name);
    self->decorate = Py_NewRef(decorate);
    self->clock = clock == Py_None ? NULL : Py_NewRef(clock);
    self->slot_of_name = PyDict_New();
    if (self->slot_of_name == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
activities_traverse(Activities *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->new_name);
    Py_VISIT(self->decorate);
    Py_VISIT(self->clock);
    return 0;
}

static int
activities_clear(Activities *self)
{
    Py_CLEAR(self->new_name);
    Py_CLEAR(self->decorate);
    Py_CLEAR(self->clock);
    return 0;
}

static void
activities_dealloc(Activities *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    activities_clear(self);
    Py_CLEAR(self->slot_of_name);
    for (int i = 0; i < self->names; i++) {
        Py_CLEAR(self->slots[i].name);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

/* Called in the main thread between two bytecodes. */
static int
count_call(void *Py_UNUSED(argument))
{
    acquire(&pulse.lock);
    pulse.calls++;
    pulse.scheduled = false;
    release(&pulse.lock);
    return 0;
}

static PyObject *
main_thread_pulse(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(arguments))
{
    acquire(&pulse.lock);
    int64_t calls = pulse.calls;
    bool schedules = !pulse.scheduled;
    pulse.scheduled = true;
    release(&pulse.lock);
    if (schedules && Py_AddPendingCall(count_call, NULL) != 0) { /* too many calls of others are pending */
        acquire(&pulse.lock);
        pulse.scheduled = false;
        release(&pulse.lock);
    }
    return PyLong_FromLongLong((long long)calls);
}

static PyMethodDef module_methods[] = {
    {"main_thread_pulse", main_thread_pulse, METH_NOARGS,
     PyDoc_STR("Return a number that changes between two calls if the main thread executes Python code between them.")},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef activity_methods[] = {
    {"__enter__", (PyCFunction)activity_enter, METH_NOARGS, PyDoc_STR("Begin the activity.")},
    {"__exit__", (PyCFunction)(void (*)(void))activity_exit, METH_FASTCALL, PyDoc_STR("End the activity.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef activity_attributes[] = {
    {"name", (getter)activity_name, NULL, PyDoc_STR("The name under which it counts."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot activity_slots[] = {
    {Py_tp_doc, PyDoc_STR("One activity: a context manager and a decorator.")},
    {Py_tp_dealloc, activity_dealloc},
    {Py_tp_repr, activity_repr},
    {Py_tp_call, activity_call},
    {Py_tp_methods, activity_methods},
    {Py_tp_getset, activity_attributes},
    {0, NULL},
};

static PyType_Spec activity_spec = {
    .name = "monitel._activities_c.Activity",
    .basicsize = sizeof(Activity),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = activity_slots,
};

static PyMethodDef activities_methods[] = {
    {"activity", (PyCFunction)activities_activity, METH_O, PyDoc_STR("Return an activity with this name.")},
    {"enter_for_owner", (PyCFunction)activities_enter_for_owner, METH_VARARGS,
     PyDoc_STR("Enter an activity for the owner; None if it has changed since the time that position() has returned.")},
    {"position", (PyCFunction)activities_position, METH_NOARGS,
     PyDoc_STR("Return the owner, its current activity, and when that began; zeros after stop().")},
    {"begin", (PyCFunction)activities_begin, METH_VARARGS,
     PyDoc_STR("Start at a time, with names for the time without an activity: one during startup, and one after it.")},
    {"stop", (PyCFunction)activities_stop, METH_NOARGS, PyDoc_STR("Ignore all activities until begin().")},
    {"end_startup", (PyCFunction)activities_end_startup, METH_VARARGS,
     PyDoc_STR("From now on time without an activity counts under this name; the calling thread takes over.")},
    {"read", (PyCFunction)activities_read, METH_NOARGS,
     PyDoc_STR("Return elapsed ns, ns by name, the current name and the number of ignored entries; None after stop().")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot activities_slots[] = {
    {Py_tp_doc, PyDoc_STR("The activities of one thread, whose durations add up to the elapsed time.")},
    {Py_tp_new, activities_new},
    {Py_tp_traverse, activities_traverse},
    {Py_tp_clear, activities_clear},
    {Py_tp_dealloc, activities_dealloc},
    {Py_tp_methods, activities_methods},
    {0, NULL},
};

static PyType_Spec activities_spec = {
    .name = "monitel._activities_c.Activities",
    .basicsize = sizeof(Activities),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = activities_slots,
};

static int
module_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "monitel does not run in sub-interpreters");
        return -1;
    }
    if (prepare_locks() < 0) {
        return -1;
    }
    activity_type = (PyTypeObject *)PyType_FromSpec(&activity_spec);
    if (activity_type == NULL) {
        return -1;
    }
    PyObject *type = PyType_FromSpec(&activities_spec);
    if (type == NULL) {
        return -1;
    }
    int failed = PyModule_AddObjectRef(module, "Activities", type);
    Py_DECREF(type);
    return failed != 0 ? -1 : PyModule_AddObjectRef(module, "Activity", (PyObject *)activity_type);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "monitel._activities_c",
    .m_doc = PyDoc_STR("The activities of one thread, which divide its time."),
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__activities_c(void)
{
    return PyModuleDef_Init(&module_definition);
}
