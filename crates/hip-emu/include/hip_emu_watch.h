// Under full checks device code is compiled with the instrumentation of clang's ThreadSanitizer, and these are the
// functions that it calls: every access to shared memory is shown to the runtime. There is no ThreadSanitizer here.
#pragma once

#define HIP_EMU_HOOK extern "C" __attribute__((disable_sanitizer_instrumentation, visibility("hidden"), used))

HIP_EMU_HOOK void hip_emu_touch(const void *address, unsigned long long size, unsigned write) {
    unsigned long long a = (unsigned long long)address;
    bool fixed = a - (unsigned long long)__start_hip_emu_shared <
                 (unsigned long long)__stop_hip_emu_shared - (unsigned long long)__start_hip_emu_shared;
    bool dynamic = a - (unsigned long long)hip_emu_dynamic < sizeof(hip_emu_dynamic);
    if (fixed || dynamic) hip_emu_context->access(hip_emu_context, address, size, write);
}

#define HIP_EMU_HOOKS(n)                                                                                               \
    HIP_EMU_HOOK void __tsan_read##n(void *p) { hip_emu_touch(p, n, 0); }                                              \
    HIP_EMU_HOOK void __tsan_write##n(void *p) { hip_emu_touch(p, n, 1); }                                             \
    HIP_EMU_HOOK void __tsan_unaligned_read##n(void *p) { hip_emu_touch(p, n, 0); }                                    \
    HIP_EMU_HOOK void __tsan_unaligned_write##n(void *p) { hip_emu_touch(p, n, 1); }                                   \
    HIP_EMU_HOOK void __tsan_read_write##n(void *p) { hip_emu_touch(p, n, 1); }                                        \
    HIP_EMU_HOOK void __tsan_unaligned_read_write##n(void *p) { hip_emu_touch(p, n, 1); }                              \
    HIP_EMU_HOOK void __tsan_volatile_read##n(void *p) { hip_emu_touch(p, n, 0); }                                     \
    HIP_EMU_HOOK void __tsan_volatile_write##n(void *p) { hip_emu_touch(p, n, 1); }
HIP_EMU_HOOKS(1)
HIP_EMU_HOOKS(2)
HIP_EMU_HOOKS(4)
HIP_EMU_HOOKS(8)
HIP_EMU_HOOKS(16)
HIP_EMU_HOOK void __tsan_init() {}
HIP_EMU_HOOK void *__tsan_memcpy(void *to, const void *from, size_t n) {
    hip_emu_touch(from, n, 0);
    hip_emu_touch(to, n, 1);
    return __builtin_memcpy(to, from, n);
}
HIP_EMU_HOOK void *__tsan_memmove(void *to, const void *from, size_t n) {
    hip_emu_touch(from, n, 0);
    hip_emu_touch(to, n, 1);
    return __builtin_memmove(to, from, n);
}
HIP_EMU_HOOK void *__tsan_memset(void *to, int value, size_t n) {
    hip_emu_touch(to, n, 1);
    return __builtin_memset(to, value, n);
}
