// What the device can do at most, for `edgegs roofline`: a plain copy, multiply-adds, 2^x, and loads from shared memory.
// Each kernel adds what it computed to its results and tells how many took part, because only the build knows how wide
// a pack is. The host builds measure their processor in the same way.
#pragma once

#ifdef EDGEGS_HOST
#define UNROLL
#else
#define UNROLL _Pragma("unroll") // chains stay in registers, and the loop around them costs little
#endif

namespace edgegs {

// Moves words of 16 bytes. Blocks take steps in turn: neighbouring steps are under way together.
DEVICE void copy_words(const CeilingParams &p) {
    constexpr int THREADS = block_threads(CEILING_THREADS), EACH = COPY_STEP / CEILING_THREADS;
    const Words16 *from = (const Words16 *)p.words_in;
    Words16 *to = (Words16 *)p.words_out;
    for (uint32 step = block_rank(); step < p.n_repeats; step += n_blocks()) {
        for (uint32 word = thread_rank(); word < COPY_STEP; word += EACH * THREADS) { // once, but in host-fast
            const uint64 first = uint64(step) * COPY_STEP + word;
            Words16 words[EACH]; // all loads of a thread before its first store
            UNROLL for (int i = 0; i < EACH; ++i) words[i] = from[first + i * THREADS];
            UNROLL for (int i = 0; i < EACH; ++i) to[first + i * THREADS] = words[i];
        }
    }
}

DEVICE void tell(const CeilingParams &p, float result, uint32 n_workers) {
    p.results[block_rank() * block_threads(CEILING_THREADS) + thread_rank()] = result;
    if (block_rank() == 0 && thread_rank() == 0) *p.n_workers = n_workers;
}

DEVICE uint32 n_lanes() { return n_blocks() * block_threads(CEILING_THREADS) * PACK_PIXELS; }

// One step of a chain. Each depends on the one before, and no compiler knows where it leads.
struct StepMultiplyAdd {
    static DEVICE Pixels step(Pixels value, Pixels factor, Pixels addend) { return multiply_add(value, factor, addend); }
};
// To 2^-x, which stays near 0.641: the sign costs nothing.
struct StepExp2 {
    static DEVICE Pixels step(Pixels value, Pixels, Pixels) { return exp2_fast(-value); }
};

// CEILING_CHAINS independent chains a thread, each of n_repeats times CEILING_STEPS steps.
template <typename Step> DEVICE void run_chains(const CeilingParams &p) {
    const Pixels factor = spread(p.factor), addend = spread(p.addend);
    Pixels values[CEILING_CHAINS];
    UNROLL for (int chain = 0; chain < CEILING_CHAINS; ++chain)
        values[chain] = first_pixels(p.addend * float(chain + thread_rank()));
    for (uint32 repeat = 0; repeat < p.n_repeats; ++repeat) {
        UNROLL for (int step = 0; step < CEILING_STEPS; ++step) {
            UNROLL for (int chain = 0; chain < CEILING_CHAINS; ++chain)
                values[chain] = Step::step(values[chain], factor, addend);
        }
    }
    Pixels sum = spread(0.0f);
    UNROLL for (int chain = 0; chain < CEILING_CHAINS; ++chain) sum = sum + values[chain];
    float result = 0.0f;
    for (int i = 0; i < PACK_PIXELS; ++i) result += pixel_of(sum, i);
    tell(p, result, n_lanes());
}

// Loads of 16 bytes that are the same for a whole warp, as the patch rasters read their staged splats.
DEVICE void load_shared(const CeilingParams &p) {
    constexpr int THREADS = block_threads(CEILING_THREADS);
    struct Shared {
        Words16 words[CEILING_WORDS];
    };
    SHARED(Shared, shared);
    for (int i = thread_rank(); i < CEILING_WORDS; i += THREADS) {
        for (int j = 0; j < 4; ++j) shared.words[i].words[j] = p.words_in[4 * i + j];
    }
    block_sync();
    uint32 sums[4] = {0, 0, 0, 0}, place = warp_rank();
    for (uint32 repeat = 0; repeat < p.n_repeats; ++repeat) {
        const Words16 *words = shared.words + place; // the steps' addresses differ by what an instruction can hold
        UNROLL for (int step = 0; step < CEILING_STEPS; step += 2) { // four instructions of three operands
            for (int j = 0; j < 4; ++j) sums[j] ^= words[step].words[j] ^ words[step + 1].words[j];
        }
        // where the next ones are depends on these, or a compiler could do with fewer
        place = (place + CEILING_STEPS + (sums[0] & 1u)) % (CEILING_WORDS - CEILING_STEPS);
    }
    tell(p, float(sums[0] ^ sums[1] ^ sums[2] ^ sums[3]), n_blocks() * (THREADS / WARP_WIDTH));
}

} // namespace edgegs

#undef UNROLL
