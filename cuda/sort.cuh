// Stage 3, sort: least-significant-digit radix sort of (key, value) pairs, stable, one launch triple a digit:
// count (each block counts its share's digits), scan (a block a digit: counts become first positions),
// scatter (each block moves its share, in order). The number of items is read on the device.
// Reduce-then-scan after Merrill & Grimshaw 2010; ranks within a warp by ballots (warp-level multisplit,
// Ashkiani et al. 2016), which sm_53 can do, unlike __match_any_sync. Scatter orders the items of a step in shared
// memory first, so that a warp stores runs of neighbours; its shared memory lets sm_53 hold two blocks.
#pragma once

#ifdef EDGEGS_HOST
#define UNROLL
#else
#define UNROLL _Pragma("unroll") // a thread's arrays stay in registers
#endif

namespace edgegs {

constexpr int SORT_BLOCK = block_threads(SORT_THREADS);
constexpr int SORT_WARPS = SORT_BLOCK / WARP_WIDTH;

static_assert(SORT_DIGITS == 1 << SORT_DIGIT_BITS, "one counter a digit");
static_assert(SORT_BLOCK == SORT_DIGITS || SORT_BLOCK == 1, "a thread a digit, or one for all");

// Items of a thread and of a block in one step.
template <typename KeyType> struct SortStep {
    static constexpr int ITEMS = WARP_WIDTH == 1      ? SORT_ITEMS_HOST_FAST
                                 : sizeof(KeyType) == 8 ? SORT_ITEMS_64
                                                        : SORT_ITEMS_32;
    static constexpr int SIZE = SORT_BLOCK * ITEMS;
};

DEVICE uint32 n_sort_items(const SortParams &p) {
    const uint64 n_items = *p.n_items;
    return uint32(n_items < p.capacity ? n_items : p.capacity);
}

template <typename KeyType> DEVICE uint32 digit_of(KeyType key, uint32 first_bit, uint32 n_bits) {
    return uint32(key >> first_bit) & ((1u << n_bits) - 1u);
}

DEVICE void count_digit(uint32 *counter) {
    if (SORT_BLOCK == 1) ++*counter; // nobody else is there
    else fetch_add(counter, 1u);     // whole numbers: any order gives the same
}

// --- count ---

// Keys are read 16 bytes at a time, and a thread's loads of a step are all under way before it counts the first key.
template <typename KeyType> struct alignas(16) KeyPack {
    static constexpr int KEYS = 16 / sizeof(KeyType);
    static constexpr int LOADS = WARP_WIDTH == 1 ? 1 : (SortStep<KeyType>::ITEMS + KEYS - 1) / KEYS;
    static_assert(SortStep<KeyType>::SIZE % KEYS == 0, "shares begin at whole packs");
    KeyType keys[KEYS];
};

// Counts the digits of this block's share. Table: digit-major, so that one scan orders digits, then blocks.
template <typename KeyType> DEVICE void sort_count(const SortParams &p) {
    typedef KeyPack<KeyType> Pack;
    struct Shared {
        uint32 warp_digit_counts[SORT_WARPS][SORT_DIGITS];
    };
    SHARED(Shared, shared);
    uint32 *counts = shared.warp_digit_counts[warp_rank()];
    UNROLL for (int i = 0; i < SORT_DIGITS / WARP_WIDTH; ++i) counts[lane_rank() + i * WARP_WIDTH] = 0;
    warp_sync();

    const Share share = share_of_block(n_sort_items(p), SortStep<KeyType>::SIZE);
    const KeyType *keys = (const KeyType *)p.keys_in + share.begin;
    const uint32 n_keys = share.end - share.begin, n_packs = n_keys / Pack::KEYS;
    for (uint32 first = thread_rank(); first < n_packs; first += SORT_BLOCK * Pack::LOADS) {
        Pack packs[Pack::LOADS];
        UNROLL for (int load = 0; load < Pack::LOADS; ++load) {
            const uint32 pack = first + load * SORT_BLOCK;
            if (pack < n_packs) packs[load] = ((const Pack *)keys)[pack];
        }
        UNROLL for (int load = 0; load < Pack::LOADS; ++load) {
            if (first + load * SORT_BLOCK >= n_packs) break;
            UNROLL for (int i = 0; i < Pack::KEYS; ++i)
                count_digit(counts + digit_of(packs[load].keys[i], p.first_bit, p.n_bits));
        }
    }
    for (uint32 item = n_packs * Pack::KEYS + thread_rank(); item < n_keys; item += SORT_BLOCK) // less than a pack
        count_digit(counts + digit_of(keys[item], p.first_bit, p.n_bits));
    block_sync();

    for (uint32 digit = thread_rank(); digit < SORT_DIGITS; digit += SORT_BLOCK) {
        uint32 count = 0;
        for (int warp = 0; warp < SORT_WARPS; ++warp) count += shared.warp_digit_counts[warp][digit];
        p.digit_block_counts[digit * n_blocks() + block_rank()] = count;
    }
}

// --- scan ---

// One block a digit: its row of the table becomes each block's first position among the digit's items, and the
// digit's total stands behind the table. Scatter adds the totals of the lower digits itself. A thread owns neighbouring
// entries, so that one sum over the block is enough.
DEVICE void sort_scan(const SortParams &p) {
    typedef SumShared<uint32, SORT_BLOCK> Shared;
    SHARED(Shared, shared);
    uint32 *row = p.digit_block_counts + block_rank() * p.n_blocks;
    const uint32 n_mine = (p.n_blocks + SORT_BLOCK - 1) / SORT_BLOCK;
    const uint32 begin = thread_rank() * n_mine;
    const uint32 end = begin + n_mine < p.n_blocks ? begin + n_mine : p.n_blocks;
    uint32 mine = 0, total;
    for (uint32 block = begin; block < end; ++block) mine += row[block];
    uint32 before = block_exclusive_sum<uint32, SORT_BLOCK>(mine, total, shared);
    for (uint32 block = begin; block < end; ++block) {
        const uint32 count = row[block];
        row[block] = before;
        before += count;
    }
    if (thread_rank() == 0) p.digit_totals[block_rank()] = total;
}

// --- scatter ---

template <typename KeyType> struct SortScatterShared {
    struct Digits {
        uint32 warp_digits[SORT_WARPS][SORT_DIGITS]; // counts, then next free place of each warp
        SumShared<uint32, SORT_BLOCK> sums;
        uint32 first_bit;
    };
    struct Items {
        KeyType keys[SortStep<KeyType>::SIZE];
        uint32 values[SortStep<KeyType>::SIZE];
    };
    union { // first the digits of a step, then its items by place: in the order of their digits
        Digits digits;
        Items items;
    };
    uint32 digit_positions[SORT_DIGITS]; // next free position of each digit in the output
    uint32 digit_offsets[SORT_DIGITS];   // from a place to the position in the output, modulo 2^32
};

// Where each digit's items of this block go: after all lower digits, and after the earlier blocks' of its own.
DEVICE void first_positions(const SortParams &p, uint32 (&positions)[SORT_DIGITS],
                            SumShared<uint32, SORT_BLOCK> &shared) {
    uint32 before = 0;
    for (uint32 first = 0; first < SORT_DIGITS; first += SORT_BLOCK) {
        const uint32 digit = first + thread_rank();
        const uint32 in_earlier_blocks = p.digit_block_counts[digit * n_blocks() + block_rank()];
        uint32 total;
        const uint32 lower = block_exclusive_sum<uint32, SORT_BLOCK>(p.digit_totals[digit], total, shared);
        positions[digit] = before + lower + in_earlier_blocks;
        before += total;
        block_sync(); // shared is written again
    }
}

// The counts of a step become the first places of each digit and, within it, each warp. A thread a digit.
template <typename KeyType> DEVICE void counts_to_places(SortScatterShared<KeyType> &shared) {
    const int digit = thread_rank();
    uint32 counts[SORT_WARPS], count = 0, total;
    UNROLL for (int warp = 0; warp < SORT_WARPS; ++warp) count += counts[warp] = shared.digits.warp_digits[warp][digit];
    uint32 place = block_exclusive_sum<uint32, SORT_BLOCK>(count, total, shared.digits.sums);
    shared.digit_offsets[digit] = shared.digit_positions[digit] - place;
    shared.digit_positions[digit] += count;
    UNROLL for (int warp = 0; warp < SORT_WARPS; ++warp) {
        shared.digits.warp_digits[warp][digit] = place;
        place += counts[warp];
    }
}

// The place of an item: the next free one of its digit, after the items of lower lanes with the same digit.
DEVICE uint32 take_place(uint32 digit, uint32 n_bits, uint32 *places) {
    uint32 peers = ~0u; // lanes with the same digit
    UNROLL for (uint32 bit = 0; bit < SORT_DIGIT_BITS; ++bit) {
        if (bit == SORT_DIGIT_BITS - 2 && n_bits <= bit) break; // passes of few bits; further zero bits change nothing
        const int set = int(digit << (31 - bit)) >> 31;         // all bits or none
        peers &= ~(warp_ballot(set != 0) ^ uint32(set));
    }
    const uint32 lower = peers & ((1u << lane_rank()) - 1u);
    const uint32 first = places[digit];
    warp_sync(); // every lane has read before the first of each digit writes
    if (lower == 0) places[digit] = first + count_bits(peers);
    warp_sync();
    return first + count_bits(lower);
}

// Moves `n_items`, at most a step's, from `step` on. A warp owns ITEMS rows of WARP_WIDTH neighbours, warps follow one
// another, and places are taken in that order, which makes the sort stable.
template <typename KeyType>
DEVICE void scatter_step(const SortParams &p, uint32 step, uint32 n_items, SortScatterShared<KeyType> &shared) {
    constexpr int ITEMS = SortStep<KeyType>::ITEMS;
    const uint32 first = warp_rank() * ITEMS * WARP_WIDTH + lane_rank();
    const KeyType *keys_in = (const KeyType *)p.keys_in + step + first;
    const uint32 *values_in = p.values_in + step + first;

    // all loads at once; what stands in for missing items has the highest digit and comes last: it gets the last places
    KeyType keys[ITEMS];
    uint32 values[ITEMS];
    UNROLL for (int row = 0; row < ITEMS; ++row) {
        const bool there = row * WARP_WIDTH < int(n_items) - int(first);
        keys[row] = there ? keys_in[row * WARP_WIDTH] : KeyType(~KeyType(0));
        values[row] = there ? values_in[row * WARP_WIDTH] : 0;
    }

    uint32 *digits = shared.digits.warp_digits[warp_rank()];
    UNROLL for (int i = 0; i < SORT_DIGITS / WARP_WIDTH; ++i) digits[lane_rank() + i * WARP_WIDTH] = 0;
    if (thread_rank() == 0) shared.digits.first_bit = p.first_bit;
    warp_sync();
    UNROLL for (int row = 0; row < ITEMS; ++row) count_digit(digits + digit_of(keys[row], p.first_bit, p.n_bits));
    block_sync();
    counts_to_places(shared);
    block_sync();
    const uint32 first_bit = shared.digits.first_bit; // read again: else the compiler keeps every digit in a register
    uint32 places[ITEMS];
    UNROLL for (int row = 0; row < ITEMS; ++row)
        places[row] = take_place(digit_of(keys[row], first_bit, p.n_bits), p.n_bits, digits);
    block_sync(); // the items take the digits' memory

    UNROLL for (int row = 0; row < ITEMS; ++row) {
        shared.items.keys[places[row]] = keys[row];
        shared.items.values[places[row]] = values[row];
    }
    block_sync();
    UNROLL for (int row = 0; row < ITEMS; ++row) {
        const uint32 place = thread_rank() + row * SORT_BLOCK;
        keys[row] = shared.items.keys[place];
        values[row] = shared.items.values[place];
        places[row] = shared.digit_offsets[digit_of(keys[row], p.first_bit, p.n_bits)] + place;
    }
    UNROLL for (int row = 0; row < ITEMS; ++row) {
        if (row * SORT_BLOCK >= int(n_items) - thread_rank()) continue;
        ((KeyType *)p.keys_out)[places[row]] = keys[row];
        p.values_out[places[row]] = values[row];
    }
    block_sync(); // the next step's digits take the items' memory
}

// Where one thread owns the block, items come in order.
template <typename KeyType>
DEVICE void scatter_alone(const SortParams &p, const Share &share, uint32 (&positions)[SORT_DIGITS]) {
    const KeyType *keys_in = (const KeyType *)p.keys_in;
    for (uint32 item = share.begin; item < share.end; ++item) {
        const uint32 position = positions[digit_of(keys_in[item], p.first_bit, p.n_bits)]++;
        ((KeyType *)p.keys_out)[position] = keys_in[item];
        p.values_out[position] = p.values_in[item];
    }
}

// Moves this block's share, a step at a time.
template <typename KeyType> DEVICE void sort_scatter(const SortParams &p) {
    constexpr uint32 SIZE = SortStep<KeyType>::SIZE;
    typedef SortScatterShared<KeyType> Shared;
    static_assert(WARP_WIDTH == 1 || sizeof(Shared) <= 32768, "sm_53's 64 KB hold two blocks");
    SHARED(Shared, shared);
    const Share share = share_of_block(n_sort_items(p), SIZE);
    if (share.begin == share.end) return; // the whole block: there are fewer steps than blocks
    first_positions(p, shared.digit_positions, shared.digits.sums);
    if (SORT_BLOCK == 1) {
        scatter_alone<KeyType>(p, share, shared.digit_positions);
        return;
    }
    for (uint32 step = share.begin; step < share.end; step += SIZE)
        scatter_step(p, step, share.end - step < SIZE ? share.end - step : SIZE, shared);
}

} // namespace edgegs

#undef UNROLL
