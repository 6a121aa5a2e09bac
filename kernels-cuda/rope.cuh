// What the kernels that rotate heads or write to the pages of a cache share. A thread takes eight elements or eight pairs of
// one head: a unit.
#pragma once
#include "vectors.cuh"

// Units of eight in `n`.
DEVICE u32 units(u32 n) { return (n + 7) / 8; }

// Units of a head that is rotated: pairs, then what is left as it is.
DEVICE u32 rope_units(u32 dim, u32 rot) { return units(rot / 2) + units(dim - rot); }

// Eight elements of a head, as they are.
template <typename X, typename Y>
DEVICE void copy_unit(const X *x, Y *y, u32 i, u32 dim, bool aligned) {
    float v[8];
    load8(x + i, left(dim, i), aligned, v);
    store8(y + i, left(dim, i), aligned, v);
}

// The elements `2i..2i+16` of interleaved pairs.
template <typename X> DEVICE void load_pairs(const X *x, u32 count, bool aligned, float (&a)[8], float (&b)[8]) {
    float lo[8], hi[8];
    load8(x, 2 * count, aligned, lo);
    load8(x + 8, left(2 * count, 8), aligned, hi);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        a[j] = lo[2 * j], b[j] = lo[2 * j + 1];
        a[4 + j] = hi[2 * j], b[4 + j] = hi[2 * j + 1];
    }
}
template <typename Y>
DEVICE void store_pairs(Y *y, u32 count, bool aligned, const float (&a)[8], const float (&b)[8]) {
    float lo[8], hi[8];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        lo[2 * j] = a[j], lo[2 * j + 1] = b[j];
        hi[2 * j] = a[4 + j], hi[2 * j + 1] = b[4 + j];
    }
    store8(y, 2 * count, aligned, lo);
    store8(y + 8, left(2 * count, 8), aligned, hi);
}

// A unit of a rotated head from x to y. All of it is rounded to R, then to Y. `table` has the row's cosines and sines.
template <typename R, typename X, typename Y>
DEVICE void rope_unit(const X *x, Y *y, const float *table, u32 unit, u32 dim, u32 rot, bool interleaved, bool aligned) {
    u32 half = rot / 2;
    if (unit >= units(half)) {
        u32 i = rot + (unit - units(half)) * 8;
        float v[8];
        load8(x + i, left(dim, i), aligned, v);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = rounded<R>(v[j]);
        store8(y + i, left(dim, i), aligned, v);
        return;
    }
    u32 i = unit * 8, count = min(left(half, i), 8u);
    float cosine[8], sine[8], a[8], b[8];
    load8(table + i, count, aligned, cosine);
    load8(table + half + i, count, aligned, sine);
    if (interleaved) {
        load_pairs(x + 2 * i, count, aligned, a, b);
    } else {
        load8(x + i, count, aligned, a);
        load8(x + half + i, count, aligned, b);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        // Fused by name, so that every kernel that rotates gives the same bits.
        float first = fmaf(a[j], cosine[j], -(b[j] * sine[j]));
        float second = fmaf(b[j], cosine[j], a[j] * sine[j]);
        a[j] = rounded<R>(first), b[j] = rounded<R>(second);
    }
    if (interleaved) {
        store_pairs(y + 2 * i, count, aligned, a, b);
    } else {
        store8(y + i, count, aligned, a);
        store8(y + half + i, count, aligned, b);
    }
}

// Where a cache has a head's row for a row's position, in rows of a head; negative where it has none.
DEVICE i64 cache_row(const Step &step, const Cache &cache, u64 row) {
    i32 position = at<const i32>(step.positions)[row];
    if (position < 0) return -1;
    i32 page = page_of(step, cache, at<const i32>(step.row_seq)[row], (u32)position / PAGE_TOKENS);
    return page < 0 ? -1 : (i64)page * cache.kv_heads * PAGE_TOKENS + position % PAGE_TOKENS;
}

// A unit of the heads of v into the cache.
template <typename V, typename C>
DEVICE void append_unit(const V *v, C *cache, i64 place, u64 row, u32 unit, u32 heads, u32 dim, bool aligned) {
    u32 head = unit / units(dim);
    copy_unit(v + (row * heads + head) * dim, cache + (place + head * PAGE_TOKENS) * dim, unit % units(dim) * 8, dim,
              aligned);
}
