/* A lock for a step of nanoseconds: memory that is read and written, without a call of Python or of the system.
 *
 * With the GIL it is nothing. Without it, it costs one atomic operation where a PyMutex costs two, which matters in
 * Stat.add(). A thread that finds it taken keeps running until it is free. A forked child never finds it taken: os.fork()
 * stops all other threads first, and CPython stops a thread only where it may also run Python. Zeros are a free lock.
 */
#ifndef MONITEL_SPIN_LOCK_H
#define MONITEL_SPIN_LOCK_H

#include <Python.h>

#ifdef Py_GIL_DISABLED
#include <stdatomic.h>
#include <stdbool.h>
#ifdef _WIN32
#include <windows.h>
#define give_way() SwitchToThread()
#else
#include <sched.h>
#define give_way() sched_yield()
#endif

typedef struct {
    atomic_bool taken;
} SpinLock;

static inline void
enter(SpinLock *lock)
{
    while (atomic_exchange_explicit(&lock->taken, true, memory_order_acquire)) {
        for (int reads = 0; atomic_load_explicit(&lock->taken, memory_order_relaxed); reads++) {
            if (reads >= 100) { /* the system may have put the other thread to sleep in its step */
                give_way();
            }
        }
    }
}

static inline void
leave(SpinLock *lock)
{
    atomic_store_explicit(&lock->taken, false, memory_order_release);
}

#else

typedef struct {
    char unused; /* C has no empty structures */
} SpinLock;

static inline void
enter(SpinLock *lock)
{
    (void)lock;
}

static inline void
leave(SpinLock *lock)
{
    (void)lock;
}

#endif
#endif
