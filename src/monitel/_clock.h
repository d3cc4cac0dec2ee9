/* The clock of time.monotonic_ns(): C and Python compare and subtract times of each other. */
#ifndef MONITEL_CLOCK_H
#define MONITEL_CLOCK_H

#include <time.h>

#ifdef __APPLE__
#define MONOTONIC CLOCK_UPTIME_RAW /* stops while the system sleeps, as CPython's mach_absolute_time() does */
#else
#define MONOTONIC CLOCK_MONOTONIC
#endif

#endif
