/* The writer of the context page, in C. _context_py.py is the twin in Python, and has the layout.
 *
 * A reader must never take a half-written value for a whole one, even if this process was killed between two
 * instructions. So each value has a checksum, and a value that changes in place has four copies, written in turns: two would do for a process that was killed, but a
 * reader beside a fast writer may find two of them half written. A counter of step times is one word, which is never half written.
 *
 * In a forked child the page is closed: by a handler of pthread_atfork(), which forks in C code call as well, and by
 * memory that the kernel clears in every child, including those of a bare clone().
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "_clock.h"
#include "_lock.h"

#if !defined(MAP_ANONYMOUS) && defined(MAP_ANON)
#define MAP_ANONYMOUS MAP_ANON
#endif

enum { PAGE_BYTES = 8192, COPIES = 4, WAITS = 48, KEY_BYTES = 47 };
enum { COUNTERS = 512, PART_BITS = 4, LOWEST_BIT = 10 }; /* of step times, as in step_times.py */
enum { STEP, BEAT, LEFT_OUT, VALUES };

typedef struct {
    uint64_t number; /* rises with each writing */
    int64_t first, second;
    uint64_t check; /* of the words before it */
} Copy;

typedef struct {
    uint64_t check; /* of the words after it; 0: the slot is free */
    int64_t start_ns;
    uint64_t thread;
    unsigned char key[KEY_BYTES + 1]; /* its length, then UTF-8 */
} Wait;

typedef struct {
    uint64_t magic;
    uint64_t unused[7]; /* so that no copy is in two cache lines */
    Copy values[VALUES][COPIES];
    Wait waits[WAITS];
    uint64_t unused_too[24];
    uint64_t step_times[COUNTERS];
} Page;

_Static_assert(offsetof(Page, waits) == 448 && sizeof(Wait) == 72, "the layout of the first 4096 bytes");
_Static_assert(offsetof(Page, step_times) == 4096 && sizeof(Page) == PAGE_BYTES, "the layout of the others");

/* All zero, as in a forked child: the page is closed. */
typedef struct {
    Page *page;
    uint64_t numbers[VALUES];
    int64_t step, step_ns; /* when it was set first, monotonic; 0: before the page was opened */
    int64_t left_out;
    uint64_t used; /* one bit for each slot */
    uint64_t tokens[WAITS];
} Writer;

/* The module refuses sub-interpreters, so these exist once in a process. */
static Writer closed;
static Writer *writer = &closed; /* from the first open() on, memory that the kernel clears in a child */
static Page *volatile mapped;    /* known in a child as well, which unmaps it */
static PyObject *window_set_step;
static Lock lock; /* of all of it */

static int64_t
read_clock(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Differs for two different contents, with a chance of 1 - 2**-64; never 0. */
static uint64_t
checksum(const void *content, size_t bytes)
{
    uint64_t sum = UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (const char *)content + i, sizeof(word));
        sum = (sum ^ word) * UINT64_C(0xD6E8FEB86659FD93);
        sum ^= sum >> 32;
    }
    return sum == 0 ? 1 : sum;
}

/* Under the lock, with an open page. */
static void
put(int value, int64_t first, int64_t second)
{
    Copy copy = {++writer->numbers[value], first, second, 0};
    copy.check = checksum(&copy, offsetof(Copy, check));
    writer->page->values[value][copy.number % COPIES] = copy;
}

/* The counter of a time: the first one for less than a microsecond, the last one for an hour and more. */
static int
counter_of(int64_t time_ns)
{
    if (time_ns < 1 << LOWEST_BIT) {
        return 0;
    }
    int bit = 63 - __builtin_clzll((unsigned long long)time_ns);
    int part = (int)(time_ns >> (bit - PART_BITS)) & ((1 << PART_BITS) - 1);
    int counter = (bit - LOWEST_BIT) << PART_BITS | part;
    return counter < COUNTERS ? counter : COUNTERS - 1;
}

/* Under the lock, with an open page. A step counts if it is the one after the last: otherwise its time is not known. */
static void
put_step(int64_t step)
{
    int64_t now_ns = read_clock(MONOTONIC);
    put(STEP, step, now_ns);
    if (step == writer->step && writer->step_ns != 0) {
        return;
    }
    if (writer->step_ns != 0 && (uint64_t)step - 1 == (uint64_t)writer->step) {
        writer->page->step_times[counter_of(now_ns - writer->step_ns)]++;
    }
    writer->step = step;
    writer->step_ns = now_ns;
}

static void
put_beat(void)
{
    put(BEAT, read_clock(MONOTONIC), read_clock(CLOCK_REALTIME));
}

static void
close_in_child(void)
{
    writer->page = NULL;
    Page *page = mapped;
    mapped = NULL;
    if (page != NULL) {
        munmap(page, PAGE_BYTES);
    }
}

static void
close_page(void)
{
    acquire(&lock);
    Page *page = mapped;
    writer->page = NULL;
    mapped = NULL; /* first: a child that another thread forks now must not unmap what is there by then */
    release(&lock);
    if (page != NULL) {
        munmap(page, PAGE_BYTES);
    }
}

/* Under the lock: get memory that the kernel clears in a child, once. */
static bool
has_writer(void)
{
    if (writer == &closed) {
        void *memory = mmap(NULL, sizeof(Writer), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            return false;
        }
#ifdef MADV_WIPEONFORK
        madvise(memory, sizeof(Writer), MADV_WIPEONFORK); /* without it there is the handler */
#endif
        writer = memory;
    }
    return true;
}

static PyObject *
context_open(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int descriptor;
    PyObject *step, *set_step;
    unsigned long long magic;
    if (!PyArg_ParseTuple(arguments, "iKOO", &descriptor, &magic, &step, &set_step)) {
        return NULL;
    }
    int64_t number = step == Py_None ? -1 : PyLong_AsLongLong(step);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    struct stat file;
    if (descriptor >= 0 && fstat(descriptor, &file) != 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (descriptor >= 0 && S_ISREG(file.st_mode) && file.st_size < PAGE_BYTES) { /* writing beyond the end of a file is SIGBUS */
        PyErr_Format(PyExc_ValueError, "a page takes a file of %d bytes, got %lld", PAGE_BYTES, (long long)file.st_size);
        return NULL;
    }
    close_page();
    acquire(&lock);
    bool ready = has_writer();
    release(&lock);
    if (!ready) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    Page *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, flags, descriptor < 0 ? -1 : descriptor, 0);
    if (page == MAP_FAILED) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    acquire(&lock);
    PyObject *previous = window_set_step;
    window_set_step = Py_NewRef(set_step);
    Page *beaten = mapped; /* of another thread that opened one meanwhile */
    memset(writer, 0, sizeof(Writer));
    mapped = page;
    writer->page = page;
    put(STEP, number, 0);
    put(LEFT_OUT, 0, 0);
    put_beat();
    page->magic = magic;
    release(&lock);
    if (beaten != NULL) {
        munmap(beaten, PAGE_BYTES);
    }
    Py_XDECREF(previous);
    Py_RETURN_NONE;
}

static PyObject *
context_close(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(arguments))
{
    close_page();
    Py_RETURN_NONE;
}

static PyObject *
context_set_step(PyObject *module, PyObject *step)
{
    int64_t number = PyLong_AsLongLong(step);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    acquire(&lock);
    PyObject *set_step = Py_XNewRef(window_set_step);
    release(&lock);
    if (set_step == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "set_step() needs open()");
        return NULL;
    }
    PyObject *result;
    (void)module;
    Py_BEGIN_CRITICAL_SECTION(module); /* of two threads, the same one sets the step of windows and of the page */
    result = PyObject_CallOneArg(set_step, step);
    acquire(&lock);
    if (result != NULL && writer->page != NULL) {
        put_step(number);
    }
    release(&lock);
    Py_END_CRITICAL_SECTION();
    Py_DECREF(set_step);
    return result;
}

/* Under the lock: the slot of a wait; WAITS if it has none. */
static int
slot_of(uint64_t token)
{
    int slot = 0;
    for (uint64_t used = writer->used; used != 0; used >>= 1, slot++) {
        if ((used & 1) != 0 && writer->tokens[slot] == token) {
            return slot;
        }
    }
    return WAITS;
}

static int
free_slot(void)
{
    int slot = 0;
    while (slot < WAITS && (writer->used >> slot & 1) != 0) {
        slot++;
    }
    return slot;
}

/* The length of a text that is cut off at a limit, but not within a character. */
static size_t
cut_length(const char *text, size_t length, size_t limit)
{
    if (length <= limit) {
        return length;
    }
    while (limit > 0 && ((unsigned char)text[limit] & 0xC0) == 0x80) {
        limit--;
    }
    return limit;
}

/* Reads the lowest 64 bits of a number: a test's clock may be of any size. Returns false with an exception set. */
static bool
read_word(PyObject *number, uint64_t *word)
{
    *word = PyLong_AsUnsignedLongLongMask(number);
    return *word != (uint64_t)-1 || !PyErr_Occurred();
}

static PyObject *
context_enter_wait(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "enter_wait() takes a token, a key, a thread and a time");
        return NULL;
    }
    Py_ssize_t length;
    uint64_t token, thread, start;
    if (!read_word(arguments[0], &token) || !read_word(arguments[2], &thread) || !read_word(arguments[3], &start)) {
        return NULL;
    }
    const char *key = PyUnicode_AsUTF8AndSize(arguments[1], &length);
    if (key == NULL) {
        return NULL;
    }
    Wait wait = {.thread = thread, .start_ns = (int64_t)start};
    size_t bytes = cut_length(key, (size_t)length, KEY_BYTES);
    wait.key[0] = (unsigned char)bytes;
    memcpy(wait.key + 1, key, bytes);
    wait.check = checksum(&wait.start_ns, sizeof(Wait) - offsetof(Wait, start_ns));
    acquire(&lock);
    if (writer->page != NULL) {
        int slot = slot_of(token);
        if (slot == WAITS) {
            slot = free_slot();
        }
        if (slot < WAITS) {
            writer->used |= UINT64_C(1) << slot;
            writer->tokens[slot] = token;
            writer->page->waits[slot] = wait;
        }
        else {
            put(LEFT_OUT, ++writer->left_out, 0);
        }
    }
    release(&lock);
    Py_RETURN_NONE;
}

static PyObject *
context_leave_wait(PyObject *Py_UNUSED(module), PyObject *number)
{
    uint64_t token;
    if (!read_word(number, &token)) {
        return NULL;
    }
    acquire(&lock);
    if (writer->page != NULL) {
        int slot = slot_of(token);
        if (slot < WAITS) {
            writer->page->waits[slot].check = 0;
            writer->used &= ~(UINT64_C(1) << slot);
        }
        else if (writer->left_out > 0) {
            put(LEFT_OUT, --writer->left_out, 0);
        }
    }
    release(&lock);
    Py_RETURN_NONE;
}

static PyObject *
context_forget_left_out(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(arguments))
{
    acquire(&lock);
    bool any = writer->page != NULL && writer->left_out > 0;
    if (any) {
        writer->left_out = 0;
        put(LEFT_OUT, 0, 0);
    }
    release(&lock);
    return PyBool_FromLong(any);
}

static PyObject *
context_beat(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(arguments))
{
    acquire(&lock);
    if (writer->page != NULL) {
        put_beat();
    }
    release(&lock);
    Py_RETURN_NONE;
}

static PyObject *
context_content(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(arguments))
{
    char content[PAGE_BYTES];
    acquire(&lock);
    bool open = writer->page != NULL;
    if (open) {
        memcpy(content, writer->page, PAGE_BYTES);
    }
    release(&lock);
    return PyBytes_FromStringAndSize(content, open ? PAGE_BYTES : 0);
}

static PyMethodDef context_functions[] = {
    {"open", context_open, METH_VARARGS,
     PyDoc_STR("Open a page: descriptor of a file or -1, magic number, step or None, function that sets the step.")},
    {"close", context_close, METH_NOARGS, PyDoc_STR("Close the page. Idempotent.")},
    {"set_step", context_set_step, METH_O, PyDoc_STR("Set the step of windows, and write it.")},
    {"enter_wait", (PyCFunction)(void (*)(void))context_enter_wait, METH_FASTCALL,
     PyDoc_STR("Write a wait: token, key, thread, monotonic ns.")},
    {"leave_wait", context_leave_wait, METH_O, PyDoc_STR("Remove a wait by its token.")},
    {"forget_left_out", context_forget_left_out, METH_NOARGS,
     PyDoc_STR("Set the number of waits without a slot to zero; return whether there were any.")},
    {"beat", context_beat, METH_NOARGS, PyDoc_STR("Write the time.")},
    {"content", context_content, METH_NOARGS, PyDoc_STR("Return the bytes of the page; none if it is closed.")},
    {NULL, NULL, 0, NULL},
};

static int
context_exec(PyObject *Py_UNUSED(module))
{
    static bool registered;
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "monitel does not run in sub-interpreters");
        return -1;
    }
    if (prepare_locks() < 0) {
        return -1;
    }
    if (!registered && (errno = pthread_atfork(NULL, NULL, close_in_child)) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    registered = true;
    return 0;
}

static PyModuleDef_Slot context_slots[] = {
    {Py_mod_exec, context_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef context_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "monitel._context_c",
    .m_doc = PyDoc_STR("The writer of the context page."),
    .m_methods = context_functions,
    .m_slots = context_slots,
};

PyMODINIT_FUNC
PyInit__context_c(void)
{
    return PyModuleDef_Init(&context_module);
}
