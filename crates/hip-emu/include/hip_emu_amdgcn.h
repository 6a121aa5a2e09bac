// The compiler's builtins for AMD GPUs, as their ISA documents describe the instructions: places, lanes (DPP, bpermute,
// readlane), bytes, dot products.
#pragma once

#define __builtin_amdgcn_workitem_id_x() (threadIdx.x)
#define __builtin_amdgcn_workitem_id_y() (threadIdx.y)
#define __builtin_amdgcn_workitem_id_z() (threadIdx.z)
#define __builtin_amdgcn_workgroup_id_x() (blockIdx.x)
#define __builtin_amdgcn_workgroup_id_y() (blockIdx.y)
#define __builtin_amdgcn_workgroup_id_z() (blockIdx.z)
#define __builtin_amdgcn_workgroup_size_x() (blockDim.x)
#define __builtin_amdgcn_workgroup_size_y() (blockDim.y)
#define __builtin_amdgcn_workgroup_size_z() (blockDim.z)
#define __builtin_amdgcn_wavefrontsize() (hip_emu_context->lanes)
#define __builtin_amdgcn_s_barrier() __syncthreads()
#define __builtin_amdgcn_wave_barrier() __syncwarp()
#define __builtin_amdgcn_fence(...) __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define __builtin_amdgcn_sched_barrier(mask) ((void)0)
#define __builtin_amdgcn_sched_group_barrier(...) ((void)0)
#define __builtin_amdgcn_s_waitcnt(n) ((void)0)
#define __builtin_amdgcn_s_sleep(n) ((void)0)
#define __builtin_amdgcn_s_setprio(n) ((void)0)
#ifndef __clang__
#define __builtin_nontemporal_load(p) (*(p))
#define __builtin_nontemporal_store(v, p) (*(p) = (v))
#endif

namespace hip_emu {
// Lanes below this one, of a mask of 32 lanes.
HIP_EMU_INLINE unsigned mbcnt_lo(unsigned mask, unsigned base) {
    unsigned lane = hip_emu_context->lane;
    return base + (unsigned)__builtin_popcount(lane >= 32 ? mask : mask & ((1u << lane) - 1));
}
HIP_EMU_INLINE unsigned mbcnt_hi(unsigned mask, unsigned base) {
    unsigned lane = hip_emu_context->lane;
    return base + (unsigned)__builtin_popcount(lane < 32 ? 0 : mask & ((1u << (lane - 32)) - 1));
}
template <typename T> static inline T first_lane(const void *site, T value) {
    unsigned long long mask;
    const unsigned long long *all = hip_emu_context->exchange(hip_emu_context, pack(value), &mask, site);
    return unpack<T>(all[__builtin_ctzll(mask)]);
}
static inline int bpermute(const void *site, int address, int value) {
    return gather(value, (unsigned)address / 4 % hip_emu_context->lanes, site);
}
// Lane i pushes its value to the lane of its address; of several the highest stays, and who gets none has 0.
static inline int permute(const void *site, int address, int value) {
    unsigned long long mask;
    unsigned long long both = (unsigned long long)(unsigned)address << 32 | (unsigned)value;
    const unsigned long long *all = hip_emu_context->exchange(hip_emu_context, both, &mask, site);
    int result = 0;
    for (unsigned i = 0; i < hip_emu_context->lanes; i++)
        if ((mask >> i & 1) && (all[i] >> 32) / 4 % hip_emu_context->lanes == hip_emu_context->lane) result = (int)(unsigned)all[i];
    return result;
}
// The lane that a DPP control reads, or -1 where there is none.
static inline int dpp_source(int lane, unsigned control) {
    int row = lane & ~15, i = lane & 15;
    if (control <= 0xff) return (lane & ~3) + (int)(control >> 2 * (lane & 3) & 3); // quad_perm
    if (control >= 0x101 && control <= 0x10f) { // row_shl
        int n = i + (int)(control & 15);
        return n < 16 ? row + n : -1;
    }
    if (control >= 0x111 && control <= 0x11f) { // row_shr
        int n = i - (int)(control & 15);
        return n >= 0 ? row + n : -1;
    }
    if (control >= 0x121 && control <= 0x12f) return row + ((i - (int)(control & 15)) & 15); // row_ror
    if (control == 0x140) return row + 15 - i;                                               // row_mirror
    if (control == 0x141) return (lane & ~7) + 7 - (lane & 7);                               // row_half_mirror
    int lanes = (int)hip_emu_context->lanes;
    if (lanes == 64) { // gfx9 alone
        if (control == 0x130) return lane + 1 < 64 ? lane + 1 : -1; // wave_shl
        if (control == 0x134) return (lane + 1) & 63;               // wave_rol
        if (control == 0x138) return lane - 1;                      // wave_shr
        if (control == 0x13c) return (lane - 1) & 63;               // wave_ror
        if (control == 0x142) return row - 1;                       // row_bcast15
        if (control == 0x143) return lane >= 32 ? 31 : -1;          // row_bcast31
    } else { // gfx10 and later
        if (control >= 0x150 && control <= 0x15f) return row + (int)(control & 15);       // row_share
        if (control >= 0x160 && control <= 0x16f) return row + (i ^ (int)(control & 15)); // row_xmask
    }
    fail("unknown-dpp: the device has no such DPP control");
}
// `old` stays where the row or the bank is masked, and where the source is outside unless `bound` asks for 0.
static inline int dpp(const void *site, int old, int value, unsigned control, unsigned rows, unsigned banks, bool bound) {
    unsigned long long mask;
    const unsigned long long *all = hip_emu_context->exchange(hip_emu_context, (unsigned)value, &mask, site);
    int lane = (int)hip_emu_context->lane;
    if (!(rows >> (lane / 16 % 4) & 1) || !(banks >> (lane / 4 % 4) & 1)) return old;
    int source = dpp_source(lane, control);
    if (source < 0 || !(mask >> source & 1)) return bound ? 0 : old;
    return (int)(unsigned)all[source];
}
// ds_swizzle in its mode of bit masks: within 32 lanes, ((lane & and) | or) ^ xor.
static inline int swizzle(const void *site, int value, unsigned pattern) {
    unsigned lane = hip_emu_context->lane, i = lane & 31, source;
    if (pattern & 0x8000) source = (lane & ~3u) + (pattern >> 2 * (lane & 3) & 3);
    else source = (lane & ~31u) + (((i & (pattern & 31)) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31));
    return gather(value, source, site);
}
// Lanes of a row of 16 by nibbles of two words; `cross` reads the other row of a pair.
static inline unsigned permlane16(const void *site, unsigned value, unsigned lo, unsigned hi, bool cross) {
    unsigned lane = hip_emu_context->lane, i = lane & 15;
    unsigned n = (i < 8 ? lo >> 4 * i : hi >> 4 * (i - 8)) & 15;
    return gather(value, ((lane & ~15u) ^ (cross ? 16u : 0u)) + n, site);
}
// v_perm_b32: byte i by byte i of the selector: 0-3 of `lo`, 4-7 of `hi`, 8-11 signs, 12 is 0, above is 255.
HIP_EMU_INLINE unsigned perm(unsigned hi, unsigned lo, unsigned selector) {
    unsigned long long bytes = (unsigned long long)hi << 32 | lo;
    unsigned y = 0;
    for (int i = 0; i < 4; i++) {
        unsigned n = selector >> 8 * i & 0xff, byte;
        if (n < 8) byte = (unsigned)(bytes >> 8 * n & 0xff);
        else if (n < 12) byte = bytes >> (16 * (n - 8) + 15) & 1 ? 0xff : 0;
        else byte = n == 12 ? 0 : 0xff;
        y |= byte << 8 * i;
    }
    return y;
}
template <int BITS> HIP_EMU_INLINE int part(unsigned word, int i, bool is_signed) {
    int shift = 32 - BITS;
    unsigned top = word >> BITS * i << shift;
    return is_signed ? (int)top >> shift : (int)(top >> shift);
}
// The sum of products of 4 bytes or 8 nibbles, with `c`; saturated on demand.
template <int BITS> HIP_EMU_INLINE int dot(bool a_signed, unsigned a, bool b_signed, unsigned b, int c, bool clamp) {
    long long sum = a_signed || b_signed ? (long long)c : (long long)(unsigned)c;
    for (int i = 0; i < 32 / BITS; i++) sum += (long long)part<BITS>(a, i, a_signed) * part<BITS>(b, i, b_signed);
    if (clamp && (a_signed || b_signed)) sum = sum > 2147483647ll ? 2147483647ll : sum < -2147483648ll ? -2147483648ll : sum;
    if (clamp && !(a_signed || b_signed) && sum > 4294967295ll) sum = 4294967295ll;
    return (int)(unsigned)sum;
}
HIP_EMU_INLINE float median3(float a, float b, float c) { return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c)); }
HIP_EMU_INLINE unsigned bits_field(unsigned x, unsigned offset, unsigned width) {
    return x >> (offset & 31) & (unsigned)((1ull << (width & 31)) - 1);
}
HIP_EMU_INLINE int bits_field_signed(unsigned x, unsigned offset, unsigned width) {
    width &= 31;
    return width == 0 ? 0 : (int)(bits_field(x, offset, width) << (32 - width)) >> (32 - width);
}
} // namespace hip_emu

#define __builtin_amdgcn_mbcnt_lo(mask, base) hip_emu::mbcnt_lo(mask, base)
#define __builtin_amdgcn_mbcnt_hi(mask, base) hip_emu::mbcnt_hi(mask, base)
#define __builtin_amdgcn_ballot_w32(p) ((unsigned)__ballot(p))
#define __builtin_amdgcn_ballot_w64(p) __ballot(p)
#define __builtin_amdgcn_readfirstlane(v) hip_emu::first_lane(HIP_EMU_SITE, (int)(v))
#define __builtin_amdgcn_readlane(v, lane) hip_emu::gather((int)(v), (unsigned)(lane), HIP_EMU_SITE)
#define __builtin_amdgcn_ds_bpermute(address, v) hip_emu::bpermute(HIP_EMU_SITE, (int)(address), (int)(v))
#define __builtin_amdgcn_ds_permute(address, v) hip_emu::permute(HIP_EMU_SITE, (int)(address), (int)(v))
#define __builtin_amdgcn_ds_swizzle(v, pattern) hip_emu::swizzle(HIP_EMU_SITE, (int)(v), pattern)
#define __builtin_amdgcn_mov_dpp(v, c, r, b, bound) hip_emu::dpp(HIP_EMU_SITE, 0, (int)(v), c, r, b, bound)
#define __builtin_amdgcn_update_dpp(old, v, c, r, b, bound) hip_emu::dpp(HIP_EMU_SITE, (int)(old), (int)(v), c, r, b, bound)
#define __builtin_amdgcn_permlane16(old, v, lo, hi, fi, bound) hip_emu::permlane16(HIP_EMU_SITE, v, lo, hi, false)
#define __builtin_amdgcn_permlanex16(old, v, lo, hi, fi, bound) hip_emu::permlane16(HIP_EMU_SITE, v, lo, hi, true)
#define __builtin_amdgcn_perm(hi, lo, selector) hip_emu::perm(hi, lo, selector)
#define __builtin_amdgcn_alignbyte(hi, lo, n) ((unsigned)(((unsigned long long)(hi) << 32 | (unsigned)(lo)) >> 8 * ((n) & 3)))
#define __builtin_amdgcn_alignbit(hi, lo, n) ((unsigned)(((unsigned long long)(hi) << 32 | (unsigned)(lo)) >> ((n) & 31)))
#define __builtin_amdgcn_ubfe(x, offset, width) hip_emu::bits_field(x, offset, width)
#define __builtin_amdgcn_sbfe(x, offset, width) hip_emu::bits_field_signed((unsigned)(x), offset, width)
#define __builtin_amdgcn_sdot4(a, b, c, clamp) hip_emu::dot<8>(true, (unsigned)(a), true, (unsigned)(b), c, clamp)
#define __builtin_amdgcn_udot4(a, b, c, clamp) ((unsigned)hip_emu::dot<8>(false, a, false, b, (int)(c), clamp))
#define __builtin_amdgcn_sudot4(as, a, bs, b, c, clamp) hip_emu::dot<8>(as, (unsigned)(a), bs, (unsigned)(b), c, clamp)
#define __builtin_amdgcn_sdot8(a, b, c, clamp) hip_emu::dot<4>(true, (unsigned)(a), true, (unsigned)(b), c, clamp)
#define __builtin_amdgcn_udot8(a, b, c, clamp) ((unsigned)hip_emu::dot<4>(false, a, false, b, (int)(c), clamp))
#define __builtin_amdgcn_sudot8(as, a, bs, b, c, clamp) hip_emu::dot<4>(as, (unsigned)(a), bs, (unsigned)(b), c, clamp)
#define __builtin_amdgcn_fmed3f(a, b, c) hip_emu::median3(a, b, c)
#define __builtin_amdgcn_rcpf(x) (1.0f / (x))
#define __builtin_amdgcn_rsqf(x) (1.0f / sqrtf(x))
#define __builtin_amdgcn_sqrtf(x) sqrtf(x)
#define __builtin_amdgcn_exp2f(x) exp2f(x)
#define __builtin_amdgcn_logf(x) log2f(x)
#define __builtin_amdgcn_fractf(x) ((x) - floorf(x))
#define __builtin_amdgcn_ldexpf(x, e) ldexpf(x, e)
