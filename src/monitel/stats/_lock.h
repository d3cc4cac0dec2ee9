/* A lock for a step: code that calls no Python, releases no reference and waits for nothing.
 *
 * With the GIL nothing can interrupt a step, and a lock is nothing. Without it the lock keeps other threads out.
 *
 * A forked child may find a lock that a thread of its parent has, because a thread that waits for a lock can be given it
 * while it sleeps. So a child makes each lock anew when it first acquires it. Zeros are a free lock.
 */
#ifndef MONITEL_LOCK_H
#define MONITEL_LOCK_H

#include <Python.h>

#ifdef Py_GIL_DISABLED
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#ifndef _WIN32
#include <pthread.h>
#endif

typedef struct {
    PyMutex mutex;
    atomic_uint forks; /* those that this process knew when it made the lock */
} Lock;

/* One for each extension. */
static atomic_uint lock_forks; /* between this process and the one that loaded the extension */
static PyMutex lock_making;

static inline void
lock_count_fork(void)
{
    lock_making = (PyMutex){0};
    atomic_fetch_add(&lock_forks, 1);
}

static inline void
lock_make(Lock *lock, unsigned int forks)
{
    PyMutex_Lock(&lock_making);
    if (atomic_load(&lock->forks) != forks) { /* no other thread was first */
        lock->mutex = (PyMutex){0};
        atomic_store(&lock->forks, forks);
    }
    PyMutex_Unlock(&lock_making);
}

static inline void
acquire(Lock *lock)
{
    unsigned int forks = atomic_load_explicit(&lock_forks, memory_order_relaxed);
    if (atomic_load_explicit(&lock->forks, memory_order_acquire) != forks) {
        lock_make(lock, forks);
    }
    PyMutex_Lock(&lock->mutex);
}

static inline void
release(Lock *lock)
{
    PyMutex_Unlock(&lock->mutex);
}

/* An extension with locks calls this when it is imported. Returns -1 with an exception set on error. */
static inline int
prepare_locks(void)
{
#ifndef _WIN32
    static bool prepared;
    if (!prepared && (errno = pthread_atfork(NULL, NULL, lock_count_fork)) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    prepared = true;
#endif
    return 0;
}

#else

typedef struct {
    char unused; /* C has no empty structures */
} Lock;

static inline void
acquire(Lock *lock)
{
    (void)lock;
}

static inline void
release(Lock *lock)
{
    (void)lock;
}

static inline int
prepare_locks(void)
{
    return 0;
}

#endif
#endif
