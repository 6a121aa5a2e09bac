// HIP device code as C++ for the host: places in the grid, barriers, exchanges between lanes, shared memory. Kernel
// texts are compiled with it by hiprtcCompileProgram. It includes no header of the system, so that it takes no names
// that a kernel's text may want.
//
// `__shared__`, `__global__` and `__launch_bounds__` leave marks, which the runtime replaces after the preprocessor.
#pragma once

#define __HIP_EMU__ 1
#define __HIP__ 1
#define __HIPCC__ 1
#define __HIPCC_RTC__ 1
#define __HIP_PLATFORM_AMD__ 1
#define __HIP_DEVICE_COMPILE__ 1

#define __global__ HIP_EMU_GLOBAL
#define __shared__ HIP_EMU_SHARED
#define __launch_bounds__(...) HIP_EMU_BOUNDS(__VA_ARGS__)
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __restrict__ __restrict
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define HIP_DYNAMIC_SHARED(T, name) extern HIP_EMU_SHARED T name[];

typedef __SIZE_TYPE__ size_t;
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;

#define HIP_EMU_INLINE static inline __attribute__((always_inline, unused))

#define HIP_EMU_VECTORS(T, N, A2, A4)                                                                                  \
    struct N##1 { T x; };                                                                                              \
    struct alignas(A2) N##2 { T x, y; };                                                                               \
    struct N##3 { T x, y, z; };                                                                                        \
    struct alignas(A4) N##4 { T x, y, z, w; };                                                                         \
    HIP_EMU_INLINE N##1 make_##N##1(T x) { return {x}; }                                                               \
    HIP_EMU_INLINE N##2 make_##N##2(T x, T y) { return {x, y}; }                                                       \
    HIP_EMU_INLINE N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }                                               \
    HIP_EMU_INLINE N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
HIP_EMU_VECTORS(signed char, char, 2, 4)
HIP_EMU_VECTORS(unsigned char, uchar, 2, 4)
HIP_EMU_VECTORS(short, short, 4, 8)
HIP_EMU_VECTORS(unsigned short, ushort, 4, 8)
HIP_EMU_VECTORS(int, int, 8, 16)
HIP_EMU_VECTORS(unsigned int, uint, 8, 16)
HIP_EMU_VECTORS(long, long, 16, 16)
HIP_EMU_VECTORS(unsigned long, ulong, 16, 16)
HIP_EMU_VECTORS(long long, longlong, 16, 16)
HIP_EMU_VECTORS(unsigned long long, ulonglong, 16, 16)
HIP_EMU_VECTORS(float, float, 8, 16)
HIP_EMU_VECTORS(double, double, 16, 16)

#ifndef __clang__
// In the place of clang's vectors, for kernels that declare theirs by such a macro: g++ spells vectors otherwise, and older
// ones have none of 16-bit floats.
namespace hip_emu {
template <typename T, int N> struct alignas(sizeof(T) * N) vector {
    T element[N];
    inline __attribute__((always_inline)) T &operator[](int i) { return element[i]; }
    inline __attribute__((always_inline)) const T &operator[](int i) const { return element[i]; }
    inline __attribute__((always_inline)) vector &operator*=(T x) {
        for (T &e : element) e *= x;
        return *this;
    }
};
} // namespace hip_emu
#define VECTOR(NAME, T, N) typedef hip_emu::vector<T, N> NAME
#endif

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace hip_emu {
// The three structs are mirrored in the runtime's device_abi.rs.
struct context {
    uint3 thread, block, block_dim, grid_dim;
    unsigned lane, lanes;
    void (*barrier)(context *, const void *site);
    const unsigned long long *(*exchange)(context *, unsigned long long value, unsigned long long *mask, const void *site);
    void (*fail)(context *, const char *message);
    void (*access)(context *, const void *address, unsigned long long size, unsigned write);
};
struct module {
    unsigned abi;
    context **current;
    char *shared, *shared_end, *dynamic;
    unsigned long long dynamic_bytes;
};
struct kernel {
    unsigned threads, params;
    const unsigned *sizes, *aligns;
    void (*call)(void *const *args);
};
} // namespace hip_emu

extern "C" {
__attribute__((visibility("hidden"))) hip_emu::context *hip_emu_context;
__attribute__((visibility("hidden"), aligned(4096))) char hip_emu_dynamic[64 * 1024 + 4096];
extern __attribute__((weak, visibility("hidden"))) char __start_hip_emu_shared[];
extern __attribute__((weak, visibility("hidden"))) char __stop_hip_emu_shared[];
extern const __attribute__((visibility("default"), used)) hip_emu::module hip_emu_module = {
    2, &hip_emu_context, __start_hip_emu_shared, __stop_hip_emu_shared, hip_emu_dynamic, sizeof(hip_emu_dynamic)};
}

#define threadIdx (hip_emu_context->thread)
#define blockIdx (hip_emu_context->block)
#define blockDim (hip_emu_context->block_dim)
#define gridDim (hip_emu_context->grid_dim)
#define warpSize ((int)hip_emu_context->lanes)

// A place in the text, of which each has an address of its own.
#define HIP_EMU_SITE ({ static const char hip_emu_site = 0; (const void *)&hip_emu_site; })

namespace hip_emu {
template <auto K> struct entry;
template <typename... A, void (*K)(A...)> struct entry<K> {
    template <typename T> struct plain { typedef T type; };
    template <typename T> struct plain<const T> { typedef T type; };
    static constexpr unsigned count = sizeof...(A);
    static constexpr unsigned sizes[count + 1] = {(unsigned)sizeof(A)..., 0};
    static constexpr unsigned aligns[count + 1] = {(unsigned)alignof(A)..., 0};
    template <unsigned... I> struct list {};
    template <unsigned N, unsigned... I> struct make : make<N - 1, N - 1, I...> {};
    template <unsigned... I> struct make<0, I...> { typedef list<I...> type; };
    template <unsigned... I> static inline __attribute__((always_inline)) void spread(void *const *args, list<I...>) {
        K(*(typename plain<A>::type *)args[I]...);
    }
    static void call(void *const *args) { spread(args, typename make<count>::type()); }
};
template <auto K> constexpr kernel describe(unsigned threads = 1024, unsigned = 0) {
    return {threads, entry<K>::count, entry<K>::sizes, entry<K>::aligns, entry<K>::call};
}

[[noreturn]] static inline void fail(const char *message) {
    hip_emu_context->fail(hip_emu_context, message);
    __builtin_unreachable();
}
template <typename T> HIP_EMU_INLINE unsigned long long pack(T value) {
    static_assert(sizeof(T) <= 8, "lanes exchange at most eight bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    return bits;
}
template <typename T> HIP_EMU_INLINE T unpack(unsigned long long bits) {
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}
// Every lane gives `value` and gets that of lane `source`.
template <typename T> static inline T gather(T value, unsigned source, const void *site) {
    unsigned long long mask;
    const unsigned long long *all = hip_emu_context->exchange(hip_emu_context, pack(value), &mask, site);
    if (source >= 64 || !(mask >> source & 1)) fail("inactive-lane: a lane reads the value of one that takes no part in the exchange");
    return unpack<T>(all[source]);
}
HIP_EMU_INLINE unsigned group_start(int width) { return hip_emu_context->lane & ~(unsigned)(width - 1); }
template <typename T> HIP_EMU_INLINE T shuffle_xor(const void *site, T value, int mask, int width = 0) {
    if (width == 0) width = warpSize;
    unsigned lane = hip_emu_context->lane, other = lane ^ (unsigned)mask;
    return gather(value, other >= group_start(width) + (unsigned)width ? lane : other, site);
}
template <typename T> HIP_EMU_INLINE T shuffle_down(const void *site, T value, unsigned delta, int width = 0) {
    if (width == 0) width = warpSize;
    unsigned lane = hip_emu_context->lane, last = group_start(width) + (unsigned)width;
    return gather(value, lane + delta >= last ? lane : lane + delta, site);
}
template <typename T> HIP_EMU_INLINE T shuffle_up(const void *site, T value, unsigned delta, int width = 0) {
    if (width == 0) width = warpSize;
    unsigned lane = hip_emu_context->lane;
    return gather(value, lane - group_start(width) < delta ? lane : lane - delta, site);
}
template <typename T> HIP_EMU_INLINE T shuffle(const void *site, T value, int source, int width = 0) {
    if (width == 0) width = warpSize;
    return gather(value, group_start(width) + ((unsigned)source & (unsigned)(width - 1)), site);
}
static inline unsigned long long ballot(const void *site, bool predicate, unsigned long long *active = nullptr) {
    unsigned long long mask, result = 0;
    const unsigned long long *all = hip_emu_context->exchange(hip_emu_context, predicate, &mask, site);
    for (unsigned i = 0; i < 64; i++)
        if (mask >> i & 1) result |= (all[i] & 1) << i;
    if (active) *active = mask;
    return result;
}
HIP_EMU_INLINE bool all(const void *site, bool predicate) {
    unsigned long long active, yes = ballot(site, predicate, &active);
    return yes == active;
}
// What every lane gave, for operations on a whole wave. `leave` lets the others go on: nobody changes `payload` before.
struct wave_view {
    unsigned long long mask;
    const void *payload[64];
};
template <typename T> static inline void meet(wave_view &view, const T &payload, const void *site) {
    unsigned long long mask;
    const unsigned long long *all = hip_emu_context->exchange(hip_emu_context, (unsigned long long)&payload, &mask, site);
    view.mask = mask;
    for (unsigned i = 0; i < 64; i++) view.payload[i] = mask >> i & 1 ? (const void *)all[i] : nullptr;
}
HIP_EMU_INLINE void leave(const void *site) { ballot(site, true); }
static inline int count_block(const void *site, bool predicate) {
    // One thread runs at a time, so a plain counter will do. Nobody counts before all have come, nor clears it before
    // all have read.
    static int counter;
    hip_emu_context->barrier(hip_emu_context, site);
    counter += predicate;
    hip_emu_context->barrier(hip_emu_context, site);
    int result = counter;
    hip_emu_context->barrier(hip_emu_context, site);
    counter = 0;
    return result;
}
} // namespace hip_emu

#define __syncthreads() hip_emu_context->barrier(hip_emu_context, HIP_EMU_SITE)
#define __syncthreads_count(p) hip_emu::count_block(HIP_EMU_SITE, p)
#define __syncthreads_or(p) (hip_emu::count_block(HIP_EMU_SITE, p) != 0)
#define __syncthreads_and(p) (hip_emu::count_block(HIP_EMU_SITE, !(p)) == 0)
#define __shfl(...) hip_emu::shuffle(HIP_EMU_SITE, __VA_ARGS__)
#define __shfl_xor(...) hip_emu::shuffle_xor(HIP_EMU_SITE, __VA_ARGS__)
#define __shfl_up(...) hip_emu::shuffle_up(HIP_EMU_SITE, __VA_ARGS__)
#define __shfl_down(...) hip_emu::shuffle_down(HIP_EMU_SITE, __VA_ARGS__)
#define __shfl_sync(mask, ...) hip_emu::shuffle(HIP_EMU_SITE, __VA_ARGS__)
#define __shfl_xor_sync(mask, ...) hip_emu::shuffle_xor(HIP_EMU_SITE, __VA_ARGS__)
#define __shfl_up_sync(mask, ...) hip_emu::shuffle_up(HIP_EMU_SITE, __VA_ARGS__)
#define __shfl_down_sync(mask, ...) hip_emu::shuffle_down(HIP_EMU_SITE, __VA_ARGS__)
#define __ballot(p) hip_emu::ballot(HIP_EMU_SITE, p)
#define __ballot_sync(mask, p) hip_emu::ballot(HIP_EMU_SITE, p)
#define __any(p) (hip_emu::ballot(HIP_EMU_SITE, p) != 0)
#define __all(p) hip_emu::all(HIP_EMU_SITE, p)
#define __any_sync(mask, p) (hip_emu::ballot(HIP_EMU_SITE, p) != 0)
#define __all_sync(mask, p) hip_emu::all(HIP_EMU_SITE, p)
#define __activemask() hip_emu::ballot(HIP_EMU_SITE, true)
#define __syncwarp(...) ((void)hip_emu::ballot(HIP_EMU_SITE, true))
#define __lane_id() (hip_emu_context->lane)
#define __threadfence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define __threadfence_block() __atomic_signal_fence(__ATOMIC_SEQ_CST)
#define __threadfence_system() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define __trap() hip_emu::fail("trap: the kernel called __trap")
#define abort() hip_emu::fail("trap: the kernel called abort")
#define HIP_EMU_TEXT_(x) #x
#define HIP_EMU_TEXT(x) HIP_EMU_TEXT_(x)
#define assert(x) ((x) ? (void)0 : hip_emu::fail("assert: " __FILE__ ":" HIP_EMU_TEXT(__LINE__) ": " #x))

#include "hip_emu_math.h"
#include "hip_emu_amdgcn.h"
#include "hip_emu_matrix.h"
#ifdef HIP_EMU_WATCH
#include "hip_emu_watch.h"
#endif
