/* The partition of a thread's time into cycles and stages, in C. _cycle_py.py is its twin in Python, and explains it.
 *
 * A step, from acquire() to release(), calls no Python and releases no reference.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <structmember.h>

#include "../../_lock.h"

enum { ITERATORS = 16 }; /* that are remembered between two backwards */

enum { OPTIMIZER, OTHER, DATA, FORWARD, BACKWARD, OWN };

static const char *const NAMES[OWN] = {"optimizer", "other", "data", "forward", "backward"};

/* The requests to one iterator since the last backward. */
typedef struct {
    PyObject *reference; /* a weak reference, or the iterator if it is not weakly referenceable */
    const void *address; /* of the iterator; ended ones leave theirs to others */
    long long batches;
    long long ns;
} Asked;

typedef struct {
    PyObject_HEAD
    PyObject *ended;
    long long waited_ns;
    long long mark_ns;
    long long step_ns;
    /* Moments are times without waiting: their differences are durations without waiting. */
    long long mark;
    long long step;
    long long began; /* what it had waited at the begin of the cycle */
    long long waited_at_backward;
    long long complete_at; /* mark_ns at which the gradients of the backward that began there were complete */
    long long waits_at;    /* mark_ns when the waits under way began; after a boundary they are over or lost */
    long long spent[OWN];
    long long not_training;
    int waits; /* waits for other ranks under way */
    Asked asked[ITERATORS];
    Asked trained[ITERATORS];
    int asked_count;
    int trained_count;
    int last; /* the position of the iterator that was asked for training last; -1 for none */
    bool has_begun;
    bool open;     /* a backward has ended since the last step of an optimizer */
    bool stepping; /* an optimizer has begun since then */
    bool cuts;     /* an optimizer has stepped inside the backward under way */
    bool asks;
    bool trains; /* the last request was for training */
    char requesting;
    Lock lock;
} Cycle;

/* The references that a step forgets, released after it. What an iterator's end runs finds them forgotten. */
typedef struct {
    PyObject *references[2 * ITERATORS];
    int count;
} Gone;

/* In a step. */
static void
forget(Asked *asked, int *count, Gone *gone)
{
    for (int i = 0; i < *count; i++) {
        gone->references[gone->count++] = asked[i].reference;
    }
    *count = 0;
}

static void
release_references(Gone *gone)
{
    for (int i = 0; i < gone->count; i++) {
        Py_DECREF(gone->references[i]);
    }
}

/* Return whether a request was one to an iterator, which is alive, because the caller has it. */
static bool
is_to(const Asked *asked, PyObject *iterator)
{
    if (asked->address != iterator || !PyWeakref_CheckRef(asked->reference)) {
        return asked->address == iterator;
    }
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    (void)PyWeakref_GetRef(asked->reference, &found);
    Py_XDECREF(found); /* never the last reference: either it is the iterator, or an ended one had its address */
    return found == iterator;
#else
    return PyWeakref_GET_OBJECT(asked->reference) == iterator;
#endif
}

/* In a step. */
static int
find(const Asked *asked, int count, PyObject *iterator)
{
    for (int i = 0; iterator != Py_None && i < count; i++) {
        if (is_to(&asked[i], iterator)) {
            return i;
        }
    }
    return -1;
}

static PyObject *
refer(PyObject *iterator)
{
    PyObject *reference = PyWeakref_NewRef(iterator, NULL);
    if (reference == NULL) {
        PyErr_Clear();
        reference = Py_NewRef(iterator);
    }
    return reference;
}

static bool
read_ns(PyObject *value, long long *ns)
{
    *ns = PyLong_AsLongLong(value);
    return *ns != -1 || !PyErr_Occurred();
}

/* In a step: pass the mark; return the time since the previous one, without waiting. */
static long long
advance(Cycle *self, long long now_ns)
{
    long long before = self->mark;
    self->mark = now_ns - self->waited_ns;
    self->mark_ns = now_ns;
    return self->mark - before;
}

/* End the cycle at the end of the last backward, unless it has ended there, and begin the next one. */
static bool
cut(Cycle *self)
{
    acquire(&self->lock);
    self->stepping = self->cuts = false;
    if (!self->open) {
        release(&self->lock);
        return true;
    }
    self->open = false;
    long long waited = self->waited_at_backward - self->began;
    bool has_begun = self->has_begun;
    long long spent[OWN];
    memcpy(spent, self->spent, sizeof(spent));
    memset(self->spent, 0, sizeof(self->spent));
    self->began = self->waited_at_backward;
    self->has_begun = true;
    release(&self->lock);
    PyObject *stages = !has_begun ? Py_NewRef(Py_None)
                                  : Py_BuildValue("[LLLLLL]", spent[OPTIMIZER], spent[OTHER], spent[DATA],
                                                  spent[FORWARD], spent[BACKWARD], waited);
    if (stages == NULL) {
        return false;
    }
    PyObject *ended;
    Py_BEGIN_CRITICAL_SECTION(self); /* an assignment to the member takes it as well */
    ended = Py_XNewRef(self->ended);
    Py_END_CRITICAL_SECTION();
    PyObject *result = NULL;
    if (ended != NULL) {
        result = PyObject_CallOneArg(ended, stages);
        Py_DECREF(ended);
    }
    else { /* __init__() was not called, or the attribute was deleted */
        PyErr_Format(PyExc_AttributeError, "'%.200s' object has no attribute '_ended'", Py_TYPE(self)->tp_name);
    }
    Py_DECREF(stages);
    Py_XDECREF(result);
    return result != NULL;
}

static PyObject *
optimizer_began(Cycle *self, PyObject *now)
{
    long long now_ns;
    if (!read_ns(now, &now_ns)) {
        return NULL;
    }
    acquire(&self->lock);
    self->stepping = self->open;
    self->step = now_ns - self->waited_ns;
    self->step_ns = now_ns;
    release(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
optimizer_ended(Cycle *self, PyObject *now)
{
    long long now_ns;
    if (!read_ns(now, &now_ns) || !cut(self)) {
        return NULL;
    }
    acquire(&self->lock);
    if (self->asks && self->step > self->mark) { /* a batch was asked between backward and the optimizer */
        self->not_training += self->step - self->mark;
        self->mark = self->step;
    }
    self->spent[OPTIMIZER] += advance(self, now_ns);
    release(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
optimizer_began_in_backward(Cycle *self, PyObject *Py_UNUSED(ignored))
{
    acquire(&self->lock);
    self->cuts = true;
    release(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
batch_began(Cycle *self, PyObject *now)
{
    long long now_ns;
    if (!read_ns(now, &now_ns)) {
        return NULL;
    }
    acquire(&self->lock);
    bool stepping = self->stepping;
    release(&self->lock);
    if (stepping && !cut(self)) { /* the step has raised, as closures ask for no batch */
        return NULL;
    }
    acquire(&self->lock);
    self->not_training += advance(self, now_ns);
    self->asks = true;
    self->requesting = true;
    release(&self->lock);
    Py_RETURN_NONE;
}

/* In a step: remove an iterator, add its time to that which is not for training, and return its reference. */
static PyObject *
remove_asked(Cycle *self, int position)
{
    PyObject *reference = self->asked[position].reference;
    self->not_training += self->asked[position].ns;
    self->asked_count--;
    memmove(&self->asked[position], &self->asked[position + 1], sizeof(Asked) * (size_t)(self->asked_count - position));
    return reference;
}

static PyObject *
batch_ended(Cycle *self, PyObject *const *arguments, Py_ssize_t count)
{
    long long now_ns;
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "batch_ended() takes 4 arguments, got %zd", count);
        return NULL;
    }
    PyObject *iterator = arguments[1];
    bool ended = arguments[2] == Py_None;
    long received = ended ? 0 : PyLong_AsLong(arguments[2]);
    int training = PyObject_IsTrue(arguments[3]);
    if (!read_ns(arguments[0], &now_ns) || (received == -1 && PyErr_Occurred()) || training < 0) {
        return NULL;
    }
    PyObject *dropped = NULL, *reference = NULL;
    int position, known;
    bool trains;
    for (;;) {
        acquire(&self->lock);
        position = find(self->asked, self->asked_count, iterator);
        known = position < 0 || ended ? find(self->trained, self->trained_count, iterator) : -1;
        trains = training && (!ended || known >= 0);
        if (!trains || position >= 0 || known >= 0 || reference != NULL) {
            break;
        }
        release(&self->lock);
        reference = refer(iterator);
    }
    self->trains = trains;
    long long spent = advance(self, now_ns);
    if (trains) {
        if (position < 0) {
            if (reference == NULL) {
                reference = Py_NewRef(self->trained[known].reference);
            }
            if (self->asked_count == ITERATORS) {
                dropped = remove_asked(self, 0);
                self->last = self->last > 0 ? self->last - 1 : -1;
            }
            position = self->asked_count++;
            self->asked[position] = (Asked){.reference = reference, .address = iterator, .batches = 0, .ns = 0};
            reference = NULL;
        }
        if (ended || received != 0 || self->last < 0) {
            self->last = position;
        }
        self->asked[position].batches += received;
        self->asked[position].ns += spent;
    }
    else {
        self->not_training += spent;
        if (ended && position >= 0) {
            dropped = remove_asked(self, position);
            if (self->last == position) {
                self->last = self->asked_count - 1;
            }
            else if (self->last > position) {
                self->last--;
            }
        }
    }
    self->asks = true;
    self->requesting = false;
    release(&self->lock);
    Py_XDECREF(dropped);
    Py_XDECREF(reference); /* another thread has added the iterator meanwhile */
    Py_RETURN_NONE;
}

/* In a step. */
static void
begin_backward(Cycle *self, long long now_ns, Gone *gone)
{
    long long gap = advance(self, now_ns);
    long long batches = self->last < 0 ? -1 : self->asked[self->last].batches;
    int trained = 0;
    self->open = self->stepping = false;
    self->spent[OTHER] += self->not_training;
    for (int i = 0; i < self->asked_count; i++) {
        bool trains = self->asked[i].batches == batches;
        self->spent[trains ? DATA : OTHER] += self->asked[i].ns;
        trained += trains;
    }
    if (!self->asks || (self->trains && !self->requesting)) {
        self->spent[FORWARD] += gap;
    }
    else { /* while a batch is requested, backward is part of making it */
        self->spent[self->requesting ? DATA : OTHER] += gap;
    }
    if (trained > 0) {
        forget(self->trained, &self->trained_count, gone);
    }
    for (int i = 0; i < self->asked_count; i++) {
        if (self->asked[i].batches == batches) {
            self->trained[self->trained_count++] = self->asked[i];
        }
        else {
            gone->references[gone->count++] = self->asked[i].reference;
        }
    }
    self->asked_count = 0;
    self->last = -1;
    self->not_training = 0;
    self->asks = self->trains = false;
    self->requesting = false;
}

static PyObject *
backward_began(Cycle *self, PyObject *now)
{
    long long now_ns;
    if (!read_ns(now, &now_ns)) {
        return NULL;
    }
    Gone gone;
    gone.count = 0;
    acquire(&self->lock);
    begin_backward(self, now_ns, &gone);
    release(&self->lock);
    release_references(&gone);
    Py_RETURN_NONE;
}

static PyObject *
backward_ended(Cycle *self, PyObject *now)
{
    long long now_ns;
    if (!read_ns(now, &now_ns)) {
        return NULL;
    }
    Gone gone;
    gone.count = 0;
    acquire(&self->lock);
    if (self->asks) { /* its begin was lost by an interrupt */
        begin_backward(self, now_ns, &gone);
    }
    self->spent[BACKWARD] += advance(self, now_ns);
    self->waited_at_backward = self->waited_ns;
    self->open = true;
    bool cuts = self->cuts;
    release(&self->lock);
    release_references(&gone);
    if (cuts && !cut(self)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
gradients_complete(Cycle *self, PyObject *Py_UNUSED(ignored))
{
    acquire(&self->lock);
    self->complete_at = self->mark_ns;
    release(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
wait_began(Cycle *self, PyObject *Py_UNUSED(ignored))
{
    acquire(&self->lock);
    self->waits = self->waits_at == self->mark_ns ? self->waits + 1 : 1;
    self->waits_at = self->mark_ns;
    long long before_ns = self->waited_ns;
    release(&self->lock);
    return PyLong_FromLongLong(before_ns);
}

static PyObject *
wait_ended(Cycle *self, PyObject *const *arguments, Py_ssize_t count)
{
    long long before_ns, ns;
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "wait_ended() takes 2 arguments, got %zd", count);
        return NULL;
    }
    if (!read_ns(arguments[0], &before_ns) || !read_ns(arguments[1], &ns)) {
        return NULL;
    }
    acquire(&self->lock);
    self->waited_ns = before_ns + ns;
    if (self->waits_at == self->mark_ns && self->waits > 0) {
        self->waits--;
    }
    release(&self->lock);
    Py_RETURN_NONE;
}

/* In a step: return the stage in flight, which the boundaries so far imply. */
static int
stage_now(const Cycle *self)
{
    if (self->stepping) {
        return OPTIMIZER;
    }
    if (self->requesting) {
        return DATA;
    }
    if (self->asks) {
        return self->trains ? FORWARD : OTHER;
    }
    if (self->open) {
        return self->trained_count > 0 ? OPTIMIZER : OTHER;
    }
    bool before = self->spent[FORWARD] != 0 || self->spent[DATA] != 0 || self->spent[OTHER] != 0;
    return before ? BACKWARD : OTHER; /* the time before a backward is added when it begins */
}

static PyObject *
in_flight(Cycle *self, PyObject *Py_UNUSED(ignored))
{
    acquire(&self->lock);
    int stage = stage_now(self);
    long long since_ns = self->mark_ns;
    bool waits = (self->waits_at == since_ns && self->waits > 0) || (stage == BACKWARD && self->complete_at == since_ns);
    release(&self->lock);
    if (since_ns == 0) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(sOL)", NAMES[stage], waits ? Py_True : Py_False, since_ns);
}

static PyObject *
waited(Cycle *self, PyObject *const *arguments, Py_ssize_t count)
{
    long long ns = 0;
    if (count > 1) {
        PyErr_Format(PyExc_TypeError, "waited() takes at most 1 argument, got %zd", count);
        return NULL;
    }
    if (count > 0 && !read_ns(arguments[0], &ns)) {
        return NULL;
    }
    acquire(&self->lock);
    long long sum = self->waited_ns += ns;
    release(&self->lock);
    return PyLong_FromLongLong(sum);
}

static PyObject *
get_asks(Cycle *self, void *Py_UNUSED(closure))
{
    acquire(&self->lock);
    bool asks = self->asks;
    release(&self->lock);
    return PyBool_FromLong(asks);
}

static PyObject *
get_trains(Cycle *self, void *Py_UNUSED(closure))
{
    acquire(&self->lock);
    bool trains = self->trains && !self->requesting;
    release(&self->lock);
    return PyBool_FromLong(trains);
}

static PyObject *
get_forward_since_ns(Cycle *self, void *Py_UNUSED(closure))
{
    acquire(&self->lock);
    bool forward = !self->asks || (self->trains && !self->requesting);
    long long since_ns = forward ? self->mark_ns : 0;
    release(&self->lock);
    return PyLong_FromLongLong(since_ns);
}

static PyObject *
get_remembered(Cycle *self, void *Py_UNUSED(closure))
{
    acquire(&self->lock);
    int count = self->asked_count;
    release(&self->lock);
    return PyLong_FromLong(count);
}

static int
cycle_init(Cycle *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"ended", NULL};
    PyObject *ended;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O:Cycle", names, &ended)) {
        return -1;
    }
    PyObject *previous;
    Py_BEGIN_CRITICAL_SECTION(self);
    previous = self->ended;
    self->ended = Py_NewRef(ended);
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(previous);
    acquire(&self->lock);
    self->last = -1;
    release(&self->lock);
    return 0;
}

static int
cycle_traverse(Cycle *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->ended);
    for (int i = 0; i < self->asked_count; i++) {
        Py_VISIT(self->asked[i].reference);
    }
    for (int i = 0; i < self->trained_count; i++) {
        Py_VISIT(self->trained[i].reference);
    }
    return 0;
}

static int
cycle_clear(Cycle *self)
{
    Gone gone;
    gone.count = 0;
    acquire(&self->lock);
    PyObject *ended = self->ended;
    self->ended = NULL;
    self->last = -1;
    forget(self->asked, &self->asked_count, &gone);
    forget(self->trained, &self->trained_count, &gone);
    release(&self->lock);
    Py_XDECREF(ended);
    release_references(&gone);
    return 0;
}

static void
cycle_dealloc(Cycle *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)cycle_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef cycle_members[] = {
    {"_ended", T_OBJECT_EX, offsetof(Cycle, ended), 0, NULL},
    {"waited_ns", T_LONGLONG, offsetof(Cycle, waited_ns), 0, PyDoc_STR("Nanoseconds that the thread has waited for other ranks.")},
    {"mark_ns", T_LONGLONG, offsetof(Cycle, mark_ns), READONLY, PyDoc_STR("The last boundary.")},
    {"step_ns", T_LONGLONG, offsetof(Cycle, step_ns), READONLY, PyDoc_STR("The begin of the last call of an optimizer.")},
    {"requesting", T_BOOL, offsetof(Cycle, requesting), READONLY, PyDoc_STR("Whether a request for a batch is under way.")},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef cycle_properties[] = {
    {"asks", (getter)get_asks, NULL, PyDoc_STR("True if a batch was asked for since the last backward."), NULL},
    {"trains", (getter)get_trains, NULL, PyDoc_STR("True if the last batch would be for training if backward began now."), NULL},
    {"forward_since_ns", (getter)get_forward_since_ns, NULL, PyDoc_STR("The begin of forward, if backward began now, or 0."), NULL},
    {"remembered", (getter)get_remembered, NULL, PyDoc_STR("Number of iterators that are remembered."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef cycle_methods[] = {
    {"optimizer_began", (PyCFunction)optimizer_began, METH_O, PyDoc_STR("An optimizer begins its step.")},
    {"optimizer_ended", (PyCFunction)optimizer_ended, METH_O, PyDoc_STR("An optimizer has ended its step.")},
    {"optimizer_began_in_backward", (PyCFunction)optimizer_began_in_backward, METH_NOARGS,
     PyDoc_STR("An optimizer steps inside backward.")},
    {"batch_began", (PyCFunction)batch_began, METH_O, PyDoc_STR("A batch is asked for.")},
    {"batch_ended", (PyCFunction)(void (*)(void))batch_ended, METH_FASTCALL, PyDoc_STR("A request for a batch has ended.")},
    {"backward_began", (PyCFunction)backward_began, METH_O, PyDoc_STR("Backward begins.")},
    {"backward_ended", (PyCFunction)backward_ended, METH_O, PyDoc_STR("Backward has ended, or raised.")},
    {"gradients_complete", (PyCFunction)gradients_complete, METH_NOARGS, PyDoc_STR("The rank's gradients are complete.")},
    {"wait_began", (PyCFunction)wait_began, METH_NOARGS, PyDoc_STR("A wait for other ranks begins.")},
    {"wait_ended", (PyCFunction)(void (*)(void))wait_ended, METH_FASTCALL, PyDoc_STR("A wait for other ranks has ended.")},
    {"in_flight", (PyCFunction)in_flight, METH_NOARGS, PyDoc_STR("Return the stage in flight.")},
    {"waited", (PyCFunction)(void (*)(void))waited, METH_FASTCALL, PyDoc_STR("Add waiting, and return the sum.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot cycle_slots[] = {
    {Py_tp_doc, PyDoc_STR("Divides the time of one training thread into stages, by their boundaries alone.")},
    {Py_tp_init, cycle_init},
    {Py_tp_traverse, cycle_traverse},
    {Py_tp_clear, cycle_clear},
    {Py_tp_dealloc, cycle_dealloc},
    {Py_tp_members, cycle_members},
    {Py_tp_getset, cycle_properties},
    {Py_tp_methods, cycle_methods},
    {0, NULL},
};

static PyType_Spec cycle_spec = {
    .name = "monitel.torch.stages._cycle_c.Cycle",
    .basicsize = sizeof(Cycle),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = cycle_slots,
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
    PyObject *type = PyType_FromSpec(&cycle_spec);
    if (type == NULL) {
        return -1;
    }
    int failed = PyModule_AddObjectRef(module, "Cycle", type);
    Py_DECREF(type);
    return failed;
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
    .m_name = "monitel.torch.stages._cycle_c",
    .m_doc = PyDoc_STR("The partition of a thread's time into cycles and stages."),
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__cycle_c(void)
{
    return PyModuleDef_Init(&module_definition);
}
