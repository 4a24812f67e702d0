// The host's side of platform.cuh: the same words for a C++14 compiler, in two builds.
//   host-fast  (EDGEGS_HOST_CHECK not set): warp width 1, one thread a block. Collectives vanish, a thread owns
//              a whole tile as packs of pixels, blocks run on the machine's threads (runtime.cpp).
//   host-check (EDGEGS_HOST_CHECK set): warp width 32 and CUDA's block sizes, every thread a fiber, every
//              collective checked, shared memory poisoned, order shuffled on request (fibers.cpp).
// Both give equal bytes; a test says so.
#pragma once

#include <cmath>
#include <cstring>

#include "launch.hpp"

#define DEVICE inline __attribute__((always_inline))
#define KERNEL(name, Params, cuda_threads)                                                             \
    static void name(const edgegs::Params &p);                                                         \
    static const edgegs::host::KernelEntry name##_entry(                                               \
        #name, edgegs::block_threads(cuda_threads), sizeof(edgegs::Params),                            \
        [](const void *params) { name(*static_cast<const edgegs::Params *>(params)); });               \
    static void name(const edgegs::Params &p)

#define DENSE_KERNEL(name, Params, cuda_threads, n_blocks) KERNEL(name, Params, cuda_threads)
#define ROLLED

#ifdef EDGEGS_HOST_CHECK
#define WARP_WIDTH 32
#define PACK_PIXELS 1
#define SHARED(Type, name) Type &name = *static_cast<Type *>(edgegs::host::shared_memory(sizeof(Type)))
#else
#define WARP_WIDTH 1
#define SHARED(Type, name) Type name
#if defined(__AVX__)
#define PACK_PIXELS 8
#else
#define PACK_PIXELS 4
#endif
#endif

#if defined(__AVX__) || defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace edgegs {

constexpr int block_threads(int cuda_threads) { return WARP_WIDTH == 1 ? 1 : cuda_threads; }

DEVICE uint32 block_rank() { return host::here->block; }
DEVICE uint32 n_blocks() { return host::here->n_blocks; }

#ifdef EDGEGS_HOST_CHECK
DEVICE int thread_rank() { return host::here->thread; }
DEVICE int lane_rank() { return host::here->thread % WARP_WIDTH; }
DEVICE int warp_rank() { return host::here->thread / WARP_WIDTH; }
// The line of the call is the collective's identity: a warp or block that meets two at once is wrong.
static inline void block_sync(int line = __builtin_LINE(), const char *file = __builtin_FILE()) {
    host::collective({host::BLOCK_SYNC, line, file}, 0);
}
static inline bool block_all(bool value, int line = __builtin_LINE(), const char *file = __builtin_FILE()) {
    return host::collective({host::BLOCK_ALL, line, file}, value) != 0;
}
static inline void warp_sync(int line = __builtin_LINE(), const char *file = __builtin_FILE()) {
    host::collective({host::WARP_SYNC, line, file}, 0);
}
static inline uint32 warp_ballot(bool value, int line = __builtin_LINE(), const char *file = __builtin_FILE()) {
    return uint32(host::collective({host::WARP_BALLOT, line, file}, value));
}
template <typename T>
static inline T warp_shuffle_up(T value, int distance, int line = __builtin_LINE(),
                                const char *file = __builtin_FILE()) {
    uint64 bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    bits = host::collective({host::WARP_SHUFFLE_UP, line, file}, bits, distance);
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}
template <typename T>
static inline T warp_shuffle(T value, int lane, int line = __builtin_LINE(), const char *file = __builtin_FILE()) {
    uint64 bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    bits = host::collective({host::WARP_SHUFFLE, line, file}, bits, lane);
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}
#else
DEVICE int thread_rank() { return 0; }
DEVICE int lane_rank() { return 0; }
DEVICE int warp_rank() { return 0; }
DEVICE void block_sync() {}
DEVICE bool block_all(bool value) { return value; }
DEVICE void warp_sync() {}
DEVICE uint32 warp_ballot(bool value) { return value; }
template <typename T> DEVICE T warp_shuffle_up(T value, int) { return value; }
template <typename T> DEVICE T warp_shuffle(T value, int) { return value; }
#endif

DEVICE int count_bits(uint32 bits) { return __builtin_popcount(bits); }
DEVICE uint32 low_bits(uint32 n) { return uint32((1ull << n) - 1u); }
DEVICE int lowest_bit(uint32 bits) { return __builtin_ctz(bits); }
DEVICE uint32 float_bits(float value) {
    uint32 bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
DEVICE float float_from_half(uint16 bits) {
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    // a float with the same mantissa and exponent, 112 steps too low; the product lifts it, subnormals included
    const uint32 magnitude = uint32(bits & 0x7fff) << 13, sign = uint32(bits & 0x8000) << 16;
    float value;
    std::memcpy(&value, &magnitude, sizeof value);
    value *= 5.192296858534828e33f; // 2^112
    uint32 lifted;
    std::memcpy(&lifted, &value, sizeof lifted);
    lifted |= sign;
    std::memcpy(&value, &lifted, sizeof value);
    return value;
#endif
}
DEVICE float signed_byte_to_float(uint32 word, int byte) { return float(int(word << (24 - 8 * byte)) >> 24); }
DEVICE float small_to_float(uint32 value) { return float(value); }
DEVICE uint16 half_from_float(float value) {
#if defined(__F16C__)
    return uint16(_cvtss_sh(value, 0));
#else
    const uint32 bits = float_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16(sign | 0x7e00);   // NaN
    if (magnitude >= 0x477ff000) return uint16(sign | 0x7c00);  // rounds to 65536 or more: infinity
    if (magnitude < 0x38800000) {                               // subnormal: the float adder rounds it
        float size;
        std::memcpy(&size, &magnitude, sizeof size);
        return uint16(sign | (float_bits(size + 0.5f) - 0x3f000000));
    }
    return uint16(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13)); // to nearest, even
#endif
}
// Two halves in a word, the first in its low bits.
DEVICE uint32 halves_from_floats(float first, float second) {
    return half_from_float(first) | uint32(half_from_float(second)) << 16;
}
DEVICE float float_of_halves(uint32 halves, int which) { return float_from_half(uint16(halves >> 16 * which)); }
// Without the digits that a half has no room for.
DEVICE float cut_to_half(float value) {
    const uint32 bits = float_bits(value) & 0xffffe000u;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
#ifdef EDGEGS_HOST_CHECK
#define HAS_TENSOR_CORES
// The warp's product of matrices, piece by piece: N_WORDS pairs of halves of a row and of a column stand in each lane of
// four. See platform.cuh for who holds what.
template <int N_WORDS>
DEVICE void multiply_halves(float (&sums)[4], const uint32 (&upper)[N_WORDS], const uint32 (&lower)[N_WORDS],
                            const uint32 (&b)[N_WORDS]) {
    const int quad = lane_rank() / 4 * 4, column = lane_rank() % 4 * 2;
    for (int word = 0; word < N_WORDS; ++word) {
        for (int part = 0; part < 4; ++part) {
            const uint32 rows[2] = {warp_shuffle(upper[word], quad + part), warp_shuffle(lower[word], quad + part)};
            const uint32 first = warp_shuffle(b[word], column * 4 + part);
            const uint32 second = warp_shuffle(b[word], column * 4 + 4 + part);
            for (int i = 0; i < 2; ++i) {
                for (int row = 0; row < 2; ++row) {
                    sums[2 * row + 0] += float_of_halves(rows[row], i) * float_of_halves(first, i);
                    sums[2 * row + 1] += float_of_halves(rows[row], i) * float_of_halves(second, i);
                }
            }
        }
    }
}
DEVICE void multiply_halves_8(float (&sums)[4], uint32 upper, uint32 lower, uint32 b) {
    multiply_halves<1>(sums, {upper}, {lower}, {b});
}
DEVICE void multiply_halves_16(float (&sums)[4], const uint32 (&a)[4], const uint32 *b) {
    multiply_halves<2>(sums, {a[0], a[2]}, {a[1], a[3]}, {b[0], b[1]});
}
#endif
DEVICE float multiply(float a, float b) { return a * b; }
DEVICE float add(float a, float b) { return a + b; }
DEVICE float log_2(float value) { return __builtin_log2f(value); }

DEVICE void prefetch(const void *) {} // processors do it by themselves
// the host runs one launch after the other
DEVICE void let_next_begin() {}
DEVICE void wait_for_previous() {}
template <typename T> DEVICE T fetch_add(T *word, T value) { return __atomic_fetch_add(word, value, __ATOMIC_RELAXED); }
// within a block, whose threads run one at a time
DEVICE void fetch_min(uint32 *word, uint32 value) { *word = value < *word ? value : *word; }
DEVICE void fetch_max(uint32 *word, uint32 value) { *word = value > *word ? value : *word; }
DEVICE uint32 take_ticket(uint32 *counter) { return fetch_add(counter, 1u); }
DEVICE void memory_fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
DEVICE void add_to(uint64 *sum, uint64 value) { __atomic_fetch_add(sum, value, __ATOMIC_RELAXED); }
DEVICE void publish(uint64 *word, uint64 value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
template <typename T> DEVICE T observe(const T *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

// Of a number and NaN, the second.
DEVICE float lesser(float a, float b) { return a < b ? a : b; }
DEVICE float greater(float a, float b) { return a > b ? a : b; }
DEVICE float square_root(float value) { return __builtin_sqrtf(value); }
DEVICE float square_root_fast(float value) { return square_root(value); }
DEVICE float log_2_fast(float value) { return log_2(value); }
DEVICE float reciprocal(float value) { return 1.0f / value; }
DEVICE float inverse_square_root(float value) { return 1.0f / square_root(value); }
DEVICE float round_up(float value) { return __builtin_ceilf(value); }
DEVICE float round_down(float value) { return __builtin_floorf(value); }

// --- pixels: a float in host-check, the vector unit's width in host-fast ---
#if PACK_PIXELS == 1
typedef float Pixels;
typedef bool PixelMask;
DEVICE Pixels spread(float value) { return value; }
DEVICE Pixels first_pixels(float first) { return first; }
DEVICE Pixels select(PixelMask mask, Pixels a, Pixels b) { return mask ? a : b; }
DEVICE bool any_pixel(PixelMask mask) { return mask; }
DEVICE PixelMask all_pixels() { return true; }
DEVICE PixelMask no_pixels() { return false; }
DEVICE float pixel_of(Pixels pixels, int) { return pixels; }
DEVICE int pixel_bits(Pixels pixels) { return int(float_bits(pixels)); }
DEVICE Pixels pixels_from_bits(int bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
typedef int PixelInts;
#else
typedef float Pixels __attribute__((vector_size(4 * PACK_PIXELS)));
typedef int PixelInts __attribute__((vector_size(4 * PACK_PIXELS)));
typedef PixelInts PixelMask;
DEVICE Pixels spread(float value) { return value - Pixels{}; }
DEVICE Pixels first_pixels(float first) {
#if PACK_PIXELS == 8
    return spread(first) + Pixels{0, 1, 2, 3, 4, 5, 6, 7};
#else
    return spread(first) + Pixels{0, 1, 2, 3};
#endif
}
DEVICE Pixels select(PixelMask mask, Pixels a, Pixels b) { return mask ? a : b; }
DEVICE PixelMask no_pixels() { return PixelMask{}; }
DEVICE PixelMask all_pixels() { return ~PixelMask{}; }
DEVICE float pixel_of(Pixels pixels, int i) { return pixels[i]; }
DEVICE PixelInts pixel_bits(Pixels pixels) { return (PixelInts)pixels; }
DEVICE Pixels pixels_from_bits(PixelInts bits) { return (Pixels)bits; }
DEVICE bool any_pixel(PixelMask mask) {
#if defined(__AVX__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#elif defined(__SSE2__)
    return _mm_movemask_ps((__m128)mask) != 0;
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return vmaxvq_u32((uint32x4_t)mask) != 0;
#else
    return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
#endif
}
#endif

DEVICE Pixels smaller(Pixels a, Pixels b) { return select(a < b, a, b); }
DEVICE Pixels larger(Pixels a, Pixels b) { return select(a > b, a, b); }

// One rounding where the machine has the instruction, two where it has not: the same in both builds.
DEVICE Pixels multiply_add(Pixels a, Pixels b, Pixels c) {
#if defined(__FMA__) && PACK_PIXELS == 1
    return __builtin_fmaf(a, b, c);
#elif defined(__FMA__) && PACK_PIXELS == 8
    return (Pixels)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON) && defined(__aarch64__) && PACK_PIXELS == 4
    return (Pixels)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// 2^n * e^r: n in the low bits of `shifted`, |r| <= ln(2)/2, Taylor's polynomial of degree 7 for e^r.
DEVICE Pixels scaled_exp(Pixels r, Pixels shifted, Pixels shifter) {
    Pixels y = spread(1.98412698e-4f);
    y = multiply_add(y, r, spread(1.38888889e-3f));
    y = multiply_add(y, r, spread(8.33333333e-3f));
    y = multiply_add(y, r, spread(4.16666667e-2f));
    y = multiply_add(y, r, spread(1.66666667e-1f));
    y = multiply_add(y, r, spread(0.5f));
    y = multiply_add(y, r, spread(1.0f));
    y = multiply_add(y, r, spread(1.0f));
    const PixelInts exponent = (pixel_bits(shifted) - pixel_bits(shifter)) * (1 << 23);
    return pixels_from_bits(pixel_bits(y) + exponent);
}

// e^x for x <= 0 to within 2 units in the last place, ln(2) taken off in two parts (Cody & Waite 1980).
// Below -87 the result stays tiny, never denormal.
DEVICE Pixels exp_exact(Pixels x) {
    x = select(x < spread(-87.0f), spread(-87.0f), x);
    const Pixels shifter = spread(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer in the low bits
    const Pixels shifted = multiply_add(x, spread(1.44269504088896341f), shifter);
    const Pixels n = shifted - shifter;
    Pixels r = multiply_add(n, spread(-0.693359375f), x);
    r = multiply_add(n, spread(2.12194440e-4f), r);
    return scaled_exp(r, shifted, shifter);
}

// 2^x for x from -126 to 127, as exact.
DEVICE Pixels exp2_exact(Pixels x) {
    x = select(x < spread(-126.0f), spread(-126.0f), x);
    const Pixels shifter = spread(12582912.0f);
    const Pixels shifted = x + shifter;
    return scaled_exp((x - (shifted - shifter)) * spread(0.693147181f), shifted, shifter);
}

// 2^x to about 2e-7: the same with a polynomial of degree 5 fitted for least maximal relative error.
DEVICE Pixels exp2_fast(Pixels x) {
    x = select(x < spread(-126.0f), spread(-126.0f), x);
    const Pixels shifter = spread(12582912.0f);
    const Pixels shifted = x + shifter;
    const Pixels f = x - (shifted - shifter);
    Pixels y = spread(1.32647e-3f);
    y = multiply_add(y, f, spread(9.67151e-3f));
    y = multiply_add(y, f, spread(5.550734e-2f));
    y = multiply_add(y, f, spread(2.4022242e-1f));
    y = multiply_add(y, f, spread(6.9314698e-1f));
    y = multiply_add(y, f, spread(1.0f));
    const PixelInts exponent = (pixel_bits(shifted) - pixel_bits(shifter)) * (1 << 23);
    return pixels_from_bits(pixel_bits(y) + exponent);
}

// The same, and 0 instead of what would be denormal: below 2^-126.
DEVICE Pixels exp2_flushed(Pixels x) { return select(x < spread(-126.0f), spread(0.0f), exp2_fast(x)); }

// The float whose bits are the whole part of `steps`.
DEVICE Pixels pixels_from_step(Pixels steps) {
#if PACK_PIXELS == 1
    return pixels_from_bits(int(steps));
#else
    return pixels_from_bits(__builtin_convertvector(steps, PixelInts));
#endif
}

} // namespace edgegs
