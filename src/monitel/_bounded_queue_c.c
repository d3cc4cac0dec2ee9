/* A queue with a limit for items and for bytes, in C. _bounded_queue_py.py is the twin in Python.
 *
 * A step, from acquire() to release(), calls no Python and releases no reference, so nothing can interrupt it:
 * destructors, signal handlers and other threads always find the queue consistent.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "_lock.h"

/* For functions that put() must not inline, so that its common path saves no registers for rare cases. */
#if defined(__GNUC__)
#define RARE __attribute__((noinline, cold))
#else
#define RARE
#endif

enum {
    ITEM_BYTES = 128,    /* of each item: the item itself and its entry in the queue */
    OBJECT_BYTES = 64,   /* of each object in a payload: its header and its entry in a container */
    CHARACTER_BYTES = 4, /* the most that a character outside ASCII takes */
    DEPTH = 8,           /* depth to which nested containers are included */
    FEW = 16,            /* items that a put drops without a buffer from the heap */
    KEPT = 256,          /* entries whose memory an empty queue keeps */
};

typedef struct {
    PyObject *item;
    int64_t bytes;
} Entry;

typedef struct {
    PyObject_HEAD
    Entry *ring;     /* capacity is 0 or a power of two */
    size_t capacity, first, waiting;
    size_t max_items, half_items;
    int64_t bytes, max_bytes, half_bytes;
    int64_t recorded, dropped;
    bool woken; /* wake() was called, or is due, since the queue was last below half */
    PyObject *wake, *evicted; /* NULL: none, or collected as garbage */
    Lock lock;
} BoundedQueue;

/* The items that a put drops, released after its step. */
typedef struct {
    PyObject *few[FEW];
    PyObject **items;
    size_t count;
} Gone;

/* The module refuses sub-interpreters, so this exists once in a process. */
static PyObject *counts_type;

/* ---- sizes ---- */

/* Adds the bytes of an object to a size, until that is beyond the limit. */
static int64_t
add_size(PyObject *value, int64_t size, int64_t limit, int depth)
{
    size += OBJECT_BYTES;
    if (PyUnicode_Check(value)) {
        return size + PyUnicode_GET_LENGTH(value) * (PyUnicode_IS_ASCII(value) ? 1 : CHARACTER_BYTES);
    }
    if (PyBytes_Check(value)) {
        return size + PyBytes_GET_SIZE(value);
    }
    if (depth == 0 || !(PyDict_Check(value) || PyList_Check(value) || PyTuple_Check(value))) {
        return size;
    }
    Py_BEGIN_CRITICAL_SECTION(value); /* released while an element's section is awaited: hence references */
    if (PyDict_Check(value)) {
        PyObject *key, *element;
        Py_ssize_t position = 0;
        while (size <= limit && PyDict_Next(value, &position, &key, &element)) {
            Py_INCREF(element);
            size = add_size(Py_NewRef(key), size, limit, depth - 1);
            size = add_size(element, size, limit, depth - 1);
            Py_DECREF(key);
            Py_DECREF(element);
        }
    }
    else {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value) && size <= limit; i++) {
            PyObject *element = Py_NewRef(PySequence_Fast_GET_ITEM(value, i));
            size = add_size(element, size, limit, depth - 1);
            Py_DECREF(element);
        }
    }
    Py_END_CRITICAL_SECTION();
    return size;
}

/* Estimates the bytes of an item from its payload; stop at any number beyond the limit. */
static int64_t
item_size(PyObject *payload, int64_t limit)
{
    if (PyLong_Check(payload)) {
        int overflow;
        long long bytes = PyLong_AsLongLongAndOverflow(payload, &overflow);
        return overflow > 0 ? INT64_MAX : overflow < 0 || bytes < 0 ? 0 : bytes;
    }
    return add_size(payload, ITEM_BYTES, limit, DEPTH);
}

/* ---- steps ---- */

static inline Entry *
entry_at(BoundedQueue *self, size_t place)
{
    return &self->ring[(self->first + place) & (self->capacity - 1)];
}

/* Makes room for one more entry. */
static bool
grow(BoundedQueue *self)
{
    size_t capacity = self->capacity == 0 ? FEW : self->capacity * 2;
    Entry *ring = capacity > SIZE_MAX / sizeof(Entry) ? NULL : PyMem_RawMalloc(capacity * sizeof(Entry));
    if (ring == NULL) {
        return false;
    }
    size_t unbroken = Py_MIN(self->waiting, self->capacity - self->first);
    if (self->waiting > 0) {
        memcpy(ring, self->ring + self->first, unbroken * sizeof(Entry));
        memcpy(ring + unbroken, self->ring, (self->waiting - unbroken) * sizeof(Entry));
    }
    PyMem_RawFree(self->ring);
    self->ring = ring;
    self->capacity = capacity;
    self->first = 0;
    return true;
}

static inline Entry
remove_oldest(BoundedQueue *self)
{
    Entry oldest = self->ring[self->first];
    self->first = (self->first + 1) & (self->capacity - 1);
    self->waiting--;
    self->bytes -= oldest.bytes;
    return oldest;
}

/* Drops as many of the oldest items as needed for a new one; false: out of memory. */
static RARE bool
make_room(BoundedQueue *self, int64_t size, Gone *gone)
{
    size_t count = 0;
    int64_t most = self->max_bytes - size, bytes = self->bytes;
    while (self->waiting - count >= self->max_items || bytes > most) {
        bytes -= entry_at(self, count)->bytes;
        count++;
    }
    if (count > FEW) {
        PyObject **items = PyMem_RawMalloc(count * sizeof(PyObject *));
        if (items == NULL) {
            return false;
        }
        gone->items = items;
    }
    for (; gone->count < count; gone->count++) {
        gone->items[gone->count] = remove_oldest(self).item;
    }
    self->dropped += (int64_t)count;
    return true;
}

/* Steals the reference to the item. */
static inline void
append(BoundedQueue *self, PyObject *item, int64_t size, Gone *gone)
{
    self->recorded++;
    if (size > self->max_bytes
        || ((self->waiting >= self->max_items || self->bytes > self->max_bytes - size) && !make_room(self, size, gone))
        || (self->waiting == self->capacity && !grow(self))) {
        self->dropped++;
        gone->items[gone->count++] = item; /* too large, or out of memory: make_room() has removed nothing */
        return;
    }
    *entry_at(self, self->waiting) = (Entry){item, size};
    self->waiting++;
    self->bytes += size;
}

static inline bool
becomes_half_full(BoundedQueue *self)
{
    if (self->woken || (self->waiting < self->half_items && self->bytes < self->half_bytes)) {
        return false;
    }
    self->woken = true;
    return true;
}

/* ---- callbacks ---- */

/* Another thread, or a callback, may collect the queue as garbage meanwhile. */
static void
call(BoundedQueue *self, PyObject **callback, PyObject *item)
{
    acquire(&self->lock);
    PyObject *function = Py_XNewRef(*callback);
    release(&self->lock);
    if (function == NULL) {
        return;
    }
    PyObject *result = item == NULL ? PyObject_CallNoArgs(function) : PyObject_CallOneArg(function, item);
    if (result == NULL) {
        PyErr_WriteUnraisable(function);
    }
    Py_XDECREF(result);
    Py_DECREF(function);
}

/* Runs after a step: the callbacks may use the queue. */
static RARE void
finish(BoundedQueue *self, Gone *gone, bool wake)
{
    for (size_t i = 0; i < gone->count; i++) {
        call(self, &self->evicted, gone->items[i]);
        Py_DECREF(gone->items[i]);
    }
    if (gone->items != gone->few) {
        PyMem_RawFree(gone->items);
    }
    if (wake) {
        call(self, &self->wake, NULL);
    }
}

/* ---- methods ---- */

/* Reads item and payload, by position or keyword. */
static RARE int
put_arguments(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **found)
{
    static const char *const names[] = {"item", "payload"};
    if (nargs > 2) {
        PyErr_Format(PyExc_TypeError, "BoundedQueue.put() takes from 2 to 3 positional arguments but %zd were given",
                     nargs + 1);
        return -1;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        found[i] = args[i];
    }
    Py_ssize_t nkeywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t i = 0; i < nkeywords; i++) {
        PyObject *keyword = PyTuple_GET_ITEM(kwnames, i);
        int which = PyUnicode_CompareWithASCIIString(keyword, names[0]) == 0   ? 0
                    : PyUnicode_CompareWithASCIIString(keyword, names[1]) == 0 ? 1
                                                                               : -1;
        if (which < 0) {
            PyErr_Format(PyExc_TypeError, "BoundedQueue.put() got an unexpected keyword argument '%U'", keyword);
            return -1;
        }
        if (which < nargs) {
            PyErr_Format(PyExc_TypeError, "BoundedQueue.put() got multiple values for argument '%U'", keyword);
            return -1;
        }
        found[which] = args[nargs + i];
    }
    if (found[0] == NULL) {
        PyErr_SetString(PyExc_TypeError, "BoundedQueue.put() missing 1 required positional argument: 'item'");
        return -1;
    }
    return 0;
}

static PyObject *
queue_put(BoundedQueue *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *found[2] = {NULL, NULL};
    if (kwnames == NULL && (nargs == 1 || nargs == 2)) {
        found[0] = args[0];
        found[1] = nargs == 2 ? args[1] : NULL;
    }
    else if (put_arguments(args, nargs, kwnames, found) < 0) {
        return NULL;
    }
    int64_t size = found[1] == NULL || found[1] == Py_None ? ITEM_BYTES : item_size(found[1], self->max_bytes);
    Gone gone;
    gone.items = gone.few;
    gone.count = 0;
    Py_INCREF(found[0]);
    acquire(&self->lock);
    append(self, found[0], size, &gone);
    bool wake = becomes_half_full(self);
    release(&self->lock);
    if (gone.count > 0 || wake) {
        finish(self, &gone, wake);
    }
    Py_RETURN_NONE;
}

static PyObject *
queue_take(BoundedQueue *self, PyObject *limit)
{
    Py_ssize_t most = PyNumber_AsSsize_t(limit, NULL);
    if (most == -1 && PyErr_Occurred()) {
        return NULL;
    }
    acquire(&self->lock);
    Py_ssize_t length = Py_MAX(0, Py_MIN(most, (Py_ssize_t)self->waiting));
    release(&self->lock);
    PyObject *taken = PyList_New(length); /* meanwhile a garbage collection, or another thread, may take items too */
    if (taken == NULL) {
        return NULL;
    }
    Entry *unused = NULL;
    Py_ssize_t count = 0;
    acquire(&self->lock);
    for (; count < length && self->waiting > 0; count++) {
        PyList_SET_ITEM(taken, count, remove_oldest(self).item);
    }
    if (self->waiting < self->half_items && self->bytes < self->half_bytes) {
        self->woken = false;
    }
    if (self->waiting == 0 && self->capacity > KEPT) {
        unused = self->ring;
        self->ring = NULL;
        self->capacity = self->first = 0;
    }
    release(&self->lock);
    PyMem_RawFree(unused);
    if (count < length && PyList_SetSlice(taken, count, length, NULL) < 0) {
        Py_CLEAR(taken);
    }
    return taken;
}

static PyObject *
queue_counts(BoundedQueue *self, PyObject *Py_UNUSED(ignored))
{
    acquire(&self->lock);
    int64_t recorded = self->recorded, dropped = self->dropped;
    size_t waiting = self->waiting;
    release(&self->lock);
    return PyObject_CallFunction(counts_type, "LLn", (long long)recorded, (long long)dropped, (Py_ssize_t)waiting);
}

static Py_ssize_t
queue_length(BoundedQueue *self)
{
    acquire(&self->lock);
    size_t waiting = self->waiting;
    release(&self->lock);
    return (Py_ssize_t)waiting;
}

static PyObject *
queue_weight_bytes(BoundedQueue *self, void *Py_UNUSED(closure))
{
    acquire(&self->lock);
    int64_t bytes = self->bytes;
    release(&self->lock);
    return PyLong_FromLongLong(bytes);
}

static PyMethodDef queue_methods[] = {
    {"put", (PyCFunction)(void (*)(void))queue_put, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("put($self, /, item, payload=None)\n--\n\n"
               "Append an item, and drop the oldest items while the queue is over a limit.\n\n"
               "Never raises, whatever the payload is.\n\n"
               "Args:\n"
               "    item: The item.\n"
               "    payload: The basis of the item's estimated size: its number of bytes, or the str, bytes or dict\n"
               "        that makes up most of it. A dict counts with its keys and values, lists and tuples with their\n"
               "        elements; all other objects have a constant size.")},
    {"take", (PyCFunction)(void (*)(void))queue_take, METH_O,
     PyDoc_STR("take($self, limit, /)\n--\n\nRemove up to ``limit`` items, and return them, oldest first.")},
    {"counts", (PyCFunction)(void (*)(void))queue_counts, METH_NOARGS,
     PyDoc_STR("counts($self, /)\n--\n\nReturn consistent counts.")},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef queue_properties[] = {
    {"weight_bytes", (getter)(void (*)(void))queue_weight_bytes, NULL,
     PyDoc_STR("Estimated size of the items in the queue."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyObject *
queue_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"max_items", "max_bytes", "wake", "evicted", NULL};
    PyObject *limits[2], *wake = Py_None, *evicted = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OO:BoundedQueue", names, &limits[0], &limits[1], &wake,
                                     &evicted)) {
        return NULL;
    }
    Py_ssize_t max_items = PyNumber_AsSsize_t(limits[0], NULL);
    if (max_items == -1 && PyErr_Occurred()) {
        return NULL;
    }
    Py_ssize_t max_bytes = PyNumber_AsSsize_t(limits[1], NULL);
    if (max_bytes == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (max_items < 1 || max_bytes < 1) {
        return PyErr_Format(PyExc_ValueError, "max_items and max_bytes must be at least 1, got %S and %S", limits[0],
                            limits[1]);
    }
    BoundedQueue *self = (BoundedQueue *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->max_items = (size_t)max_items;
    self->half_items = self->max_items / 2 + self->max_items % 2;
    self->max_bytes = max_bytes;
    self->half_bytes = self->max_bytes / 2 + self->max_bytes % 2;
    self->wake = wake == Py_None ? NULL : Py_NewRef(wake);
    self->evicted = evicted == Py_None ? NULL : Py_NewRef(evicted);
    return (PyObject *)self;
}

static int
queue_traverse(BoundedQueue *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->wake);
    Py_VISIT(self->evicted);
    for (size_t i = 0; i < self->waiting; i++) {
        Py_VISIT(entry_at(self, i)->item);
    }
    return 0;
}

/* Drops all items; a destructor that runs meanwhile may put another one. */
static int
queue_clear(BoundedQueue *self)
{
    acquire(&self->lock);
    BoundedQueue old = {
        .ring = self->ring, .capacity = self->capacity, .first = self->first, .waiting = self->waiting,
        .wake = self->wake, .evicted = self->evicted,
    };
    self->wake = self->evicted = NULL;
    self->ring = NULL;
    self->capacity = self->first = self->waiting = 0;
    self->bytes = 0;
    self->dropped += (int64_t)old.waiting;
    release(&self->lock);
    for (size_t i = 0; i < old.waiting; i++) {
        Py_DECREF(entry_at(&old, i)->item);
    }
    PyMem_RawFree(old.ring);
    Py_XDECREF(old.wake);
    Py_XDECREF(old.evicted);
    return 0;
}

static void
queue_dealloc(BoundedQueue *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    queue_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyType_Slot queue_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR(
        "BoundedQueue(max_items, max_bytes, *, wake=None, evicted=None)\n--\n\n"
        "Holds the newest items, within a limit for items and a limit for bytes.\n\n"
        "While it is over a limit it drops the oldest item, and counts it in the same step. An item that is larger\n"
        "than the byte limit is dropped itself; the others stay. Thread-safe, even in destructors, signal handlers\n"
        "and the callbacks. A forked child must create a new queue.")},
    {Py_tp_new, queue_new},
    {Py_tp_dealloc, queue_dealloc},
    {Py_tp_traverse, queue_traverse},
    {Py_tp_clear, queue_clear},
    {Py_tp_methods, queue_methods},
    {Py_tp_getset, queue_properties},
    {Py_sq_length, queue_length},
    {0, NULL},
};

static PyType_Spec queue_spec = {
    .name = "monitel._bounded_queue_c.BoundedQueue",
    .basicsize = sizeof(BoundedQueue),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = queue_slots,
};

static int
queue_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "monitel does not run in sub-interpreters");
        return -1;
    }
    if (prepare_locks() < 0) {
        return -1;
    }
    PyObject *twin = PyImport_ImportModule("monitel._bounded_queue_py");
    if (twin == NULL) {
        return -1;
    }
    counts_type = PyObject_GetAttrString(twin, "QueueCounts");
    Py_DECREF(twin);
    PyObject *type = counts_type == NULL ? NULL : PyType_FromSpec(&queue_spec);
    if (type == NULL) {
        return -1;
    }
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, queue_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef queue_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "monitel._bounded_queue_c",
    .m_doc = PyDoc_STR("A queue with a limit for items and for bytes, in C."),
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__bounded_queue_c(void)
{
    return PyModuleDef_Init(&queue_module);
}
