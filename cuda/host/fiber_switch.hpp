// Switching fibers: a dozen instructions for x86-64 and aarch64 (the callee-saved registers and the stack
// pointer, as the System V and AAPCS64 calling conventions list them), ucontext elsewhere.
// Under ASan every switch is announced (sanitizer/common_interface_defs.h), or it takes stacks for one another.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_start_switch_fiber(void **fake_stack, const void *bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void *fake_stack, const void **bottom, size_t *size);
extern "C" void __asan_unpoison_memory_region(void const volatile *area, size_t size);
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#define EDGEGS_UCONTEXT
#include <ucontext.h>
#endif

extern "C" void edgegs_fiber_entry();

namespace edgegs {
namespace host {

struct FiberContext {
    void *stack_pointer = nullptr;
#ifdef EDGEGS_UCONTEXT
    ucontext_t context;
#endif
    const void *stack_bottom = nullptr; // of the fiber's own stack; null for the scheduler until first left
    size_t stack_size = 0;
    void *fake_stack = nullptr;
};

#ifndef EDGEGS_UCONTEXT
extern "C" void edgegs_switch_stacks(void **save, void *load);
#if defined(__x86_64__)
asm(R"(
.text
.type edgegs_switch_stacks, @function
edgegs_switch_stacks:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    pop %rax
    jmp *%rax
.size edgegs_switch_stacks, .-edgegs_switch_stacks
)");
#else
asm(R"(
.text
.type edgegs_switch_stacks, %function
edgegs_switch_stacks:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size edgegs_switch_stacks, .-edgegs_switch_stacks
)");
#endif
#endif

// A fiber that will start in edgegs_fiber_entry when first switched to.
inline void make_fiber(FiberContext &fiber, char *stack, size_t size) {
    fiber.stack_bottom = stack;
    fiber.stack_size = size;
    fiber.fake_stack = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, size); // an abandoned fiber's frames
#endif
#ifdef EDGEGS_UCONTEXT
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stack;
    fiber.context.uc_stack.ss_size = size;
    makecontext(&fiber.context, edgegs_fiber_entry, 0);
#else
    uintptr_t top = (uintptr_t(stack) + size) & ~uintptr_t(15);
#if defined(__x86_64__)
    void **frame = reinterpret_cast<void **>(top) - 8; // six registers, the entry, one word of alignment
    for (int i = 0; i < 8; ++i) frame[i] = nullptr;
    frame[6] = reinterpret_cast<void *>(edgegs_fiber_entry);
#else
    void **frame = reinterpret_cast<void **>(top) - 20;
    for (int i = 0; i < 20; ++i) frame[i] = nullptr;
    frame[11] = reinterpret_cast<void *>(edgegs_fiber_entry); // x30
#endif
    fiber.stack_pointer = frame;
#endif
}

// To be called where a switch arrives; `came_from`, where given, learns its own stack (the scheduler's is only
// known from there).
inline void finish_switch(FiberContext &arrived, FiberContext *came_from) {
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(arrived.fake_stack, &bottom, &size);
    if (came_from) {
        came_from->stack_bottom = bottom;
        came_from->stack_size = size;
    }
#else
    (void)arrived;
    (void)came_from;
#endif
}

inline void switch_fiber(FiberContext &from, FiberContext &to, bool last) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.stack_bottom, to.stack_size);
#else
    (void)last;
#endif
#ifdef EDGEGS_UCONTEXT
    swapcontext(&from.context, &to.context);
#else
    edgegs_switch_stacks(&from.stack_pointer, to.stack_pointer);
#endif
    finish_switch(from, nullptr);
}

} // namespace host
} // namespace edgegs
