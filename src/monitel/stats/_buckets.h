/* Buckets of a histogram, in C. Buckets in histogram.py is the twin in Python, which counts exactly the same.
 *
 * The histogram is OpenTelemetry's base-2 exponential one: at most 160 buckets on either side of zero, of the largest
 * scale at which the samples fit.
 */
#ifndef MONITEL_BUCKETS_H
#define MONITEL_BUCKETS_H

#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define MAX_SCALE 20
#define MAX_BUCKETS 160

typedef struct {
    int64_t first; /* index of the bucket counted in counts[0] */
    uint64_t counts[MAX_BUCKETS];
} Side;

typedef struct {
    int64_t scale;
    double per_octave; /* buckets between two powers of two: 2 ** scale */
    double sum, min, max;
    uint64_t zero_count, nonfinite;
    Side sides[2]; /* of positive and of negative samples */
} Buckets;

static void
buckets_empty(Buckets *self)
{
    memset(self, 0, sizeof(Buckets));
    self->scale = MAX_SCALE;
    self->per_octave = ldexp(1.0, MAX_SCALE);
    self->min = Py_HUGE_VAL;
    self->max = -Py_HUGE_VAL;
}

/* Up to this scale no logarithm is needed: an octave is divided into 4,096 buckets, and also into 4,096 slots of equal
 * width, in each of which at most two buckets begin. Larger scales occur if all samples are within 3 percent of each
 * other: then one sample in fifty, close to the bounds of its bucket, needs a logarithm. */
#define TABLE_SCALE 12
#define SLOTS (1 << TABLE_SCALE)
#define MANTISSA_BITS 52
#define MANTISSA (((uint64_t)1 << MANTISSA_BITS) - 1)
#define ONE ((uint64_t)1023 << MANTISSA_BITS) /* the bits of 1.0 */

static uint64_t ends[SLOTS + 2]; /* the largest mantissa that is not above bucket k - 1 of its octave */
static double widths[SLOTS];     /* the part of an octave that one unit of the mantissa is, in this bucket */
static int16_t starts[SLOTS];    /* the bucket in which a slot begins; -1 is the bucket below the octave */

static double
log2_of_mantissa(uint64_t mantissa)
{
    double significand;
    mantissa |= ONE;
    memcpy(&significand, &mantissa, sizeof(significand));
    return log2(significand);
}

/* Fills the tables, once. The bounds are computed by the logarithm itself, so that both methods always agree. */
static void
make_table(void)
{
    if (ends[SLOTS] != 0) {
        return;
    }
    for (int64_t k = 0; k <= SLOTS + 1; k++) {
        double end = exp2((double)k / SLOTS);
        uint64_t mantissa = k < SLOTS ? (uint64_t)ldexp(end - 1.0, MANTISSA_BITS) : MANTISSA;
        while (mantissa > 0 && log2_of_mantissa(mantissa) * SLOTS > (double)k) {
            mantissa--;
        }
        while (mantissa < MANTISSA && log2_of_mantissa(mantissa + 1) * SLOTS <= (double)k) {
            mantissa++;
        }
        ends[k] = mantissa;
    }
    int16_t bucket = -1;
    for (uint64_t slot = 0; slot < SLOTS; slot++) {
        while (slot << (MANTISSA_BITS - TABLE_SCALE) > ends[bucket + 1]) {
            bucket++;
        }
        starts[slot] = bucket;
        widths[slot] = 1.0 / ((double)(ends[slot + 1] - ends[slot]) * SLOTS);
    }
}

/* The bucket of a finite number above 0, given by its bits. A power of two belongs to the bucket below it. */
static inline int64_t
bucket_index(const Buckets *self, uint64_t bits)
{
    int64_t exponent = (int64_t)(bits >> MANTISSA_BITS) - 1023;
    if (exponent == -1023) { /* subnormal: shifted until it has its leading one */
        for (exponent = -1022; bits < (uint64_t)1 << MANTISSA_BITS; exponent--) {
            bits <<= 1;
        }
    }
    uint64_t mantissa = bits & MANTISSA;
    int64_t bucket = starts[mantissa >> (MANTISSA_BITS - TABLE_SCALE)];
    bucket += (mantissa > ends[bucket + 1]) + (mantissa > ends[bucket + 2]);
    if (self->scale <= TABLE_SCALE) {
        return (exponent * SLOTS + bucket) >> (TABLE_SCALE - self->scale);
    }
    int64_t per_octave = (int64_t)1 << self->scale;
    if (bucket >= 0) {
        /* Within a bucket of the table the logarithm is linear, up to 0.6 percent of a bucket of scale 20. */
        double position = (double)(int64_t)(mantissa - ends[bucket]) * widths[bucket] * self->per_octave;
        int64_t whole = (int64_t)position;
        double rest = position - (double)whole;
        if (rest > 0.01 && rest < 0.99) {
            return exponent * per_octave + bucket * (per_octave >> TABLE_SCALE) + whole;
        }
    }
    double position = log2_of_mantissa(mantissa) * self->per_octave; /* exact at powers of two */
    int64_t whole = (int64_t)position;
    return exponent * per_octave + whole - ((double)whole == position);
}

/* Finds the first and the last bucket with samples; false: there is none. */
static bool
occupied(const Side *side, int64_t *first, int64_t *last)
{
    Py_ssize_t low = 0, high = MAX_BUCKETS - 1;
    while (low < MAX_BUCKETS && side->counts[low] == 0) {
        low++;
    }
    while (high > low && side->counts[high] == 0) {
        high--;
    }
    *first = side->first + low;
    *last = side->first + high;
    return low < MAX_BUCKETS;
}

/* Merges each 2 ** shift buckets into one, and moves them so that counts[0] is for the bucket `first`. */
static void
lay_out(Side *side, int64_t first, int64_t shift)
{
    Side was = *side;
    memset(side, 0, sizeof(Side));
    side->first = first;
    for (int64_t i = 0; i < MAX_BUCKETS; i++) {
        if (was.counts[i] != 0) {
            side->counts[((was.first + i) >> shift) - first] += was.counts[i];
        }
    }
}

/* Makes room for another bucket by centring the occupied ones; makes the buckets wider if necessary. */
static RARE void
make_room(Buckets *self, Side *side, int64_t index)
{
    int64_t first, last, shift = 0;
    if (!occupied(side, &first, &last)) {
        first = last = index;
    }
    first = Py_MIN(first, index);
    last = Py_MAX(last, index);
    while ((last >> shift) - (first >> shift) >= MAX_BUCKETS) {
        shift++;
    }
    first >>= shift;
    last >>= shift;
    lay_out(side, first - (MAX_BUCKETS - 1 - (last - first)) / 2, shift);
    if (shift > 0) {
        Side *other = &self->sides[side == &self->sides[0]];
        if (occupied(other, &first, &last)) {
            lay_out(other, first >> shift, shift);
        }
        self->scale -= shift;
        self->per_octave = ldexp(1.0, (int)self->scale);
    }
}

#define BUCKETS_BYTES (6 * sizeof(int64_t) + 2 * (2 + MAX_BUCKETS) * sizeof(int64_t))

/* Writes the buckets in bytes, BUCKETS_BYTES at most, as monitel.stats.window describes them. Returns their number. */
static size_t
buckets_write(const Buckets *self, char *to)
{
    char *begin = to;
    int64_t counts[] = {self->scale, (int64_t)self->zero_count, (int64_t)self->nonfinite};
    double totals[] = {self->sum, self->min, self->max};
    memcpy(to, counts, sizeof(counts));
    memcpy(to + sizeof(counts), totals, sizeof(totals));
    to += sizeof(counts) + sizeof(totals);
    for (int i = 0; i < 2; i++) {
        const Side *side = &self->sides[i];
        int64_t first, last;
        bool any = occupied(side, &first, &last);
        int64_t range[] = {any ? first : 0, any ? last - first + 1 : 0};
        size_t length = (size_t)range[1] * sizeof(uint64_t);
        memcpy(to, range, sizeof(range));
        memcpy(to + sizeof(range), side->counts + (any ? first - side->first : 0), length);
        to += sizeof(range) + length;
    }
    return (size_t)(to - begin);
}

static inline void
buckets_add(Buckets *self, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    Side *side = &self->sides[bits >> 63];
    bits &= INT64_MAX;
    if (bits >= (uint64_t)2047 << 52) {
        self->nonfinite++;
        return;
    }
    if (bits == 0) {
        self->zero_count++;
    }
    else {
        uint64_t slot = (uint64_t)(bucket_index(self, bits) - side->first);
        if (slot >= MAX_BUCKETS) {
            make_room(self, side, bucket_index(self, bits));
            slot = (uint64_t)(bucket_index(self, bits) - side->first);
        }
        side->counts[slot]++;
    }
    self->sum += x;
    self->min = x < self->min ? x : self->min;
    self->max = x > self->max ? x : self->max;
}

#endif
