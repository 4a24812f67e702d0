// Stage 3, sort: least-significant-digit radix sort of (key, value) pairs, stable, one launch triple a digit:
// count (each block counts its share's digits), scan (a block a digit: counts become first positions),
// scatter (each block moves its share, in order). The number of items is read on the device.
// Reduce-then-scan after Merrill & Grimshaw 2010; ranks within a warp by ballots (warp-level multisplit,
// Ashkiani et al. 2016), which sm_53 can do, unlike __match_any_sync. Block size: one thread a digit.
#pragma once

namespace edgegs {

static_assert(SORT_DIGITS == 1 << SORT_DIGIT_BITS, "one counter a digit");

DEVICE uint32 n_sort_items(const SortParams &p) {
    const uint64 n_items = *p.n_items;
    return uint32(n_items < p.capacity ? n_items : p.capacity);
}

constexpr int SORT_BLOCK = block_threads(SORT_THREADS);
constexpr int SORT_WARPS = SORT_BLOCK / WARP_WIDTH;
constexpr int SORT_ITEMS = WARP_WIDTH == 1 ? SORT_ITEMS_HOST_FAST : SORT_ITEMS_PER_THREAD;
constexpr int SORT_STEP = SORT_BLOCK * SORT_ITEMS;

template <typename KeyType> DEVICE uint32 digit_of(KeyType key, const SortParams &p) {
    return uint32(key >> p.first_bit) & ((1u << p.n_bits) - 1u);
}

// Ranks of one warp's row of items among equal digits: how many lower lanes (and, through `counts`, earlier
// rows) hold the same digit. Lanes without an item take part in the ballots and are masked out.
DEVICE uint32 rank_in_warp(uint32 digit, bool active, uint32 n_bits, uint32 *counts) {
    uint32 peers = warp_ballot(active);
    if (WARP_WIDTH > 1) {
        for (uint32 bit = 0; bit < n_bits; ++bit) {
            const bool set = digit >> bit & 1u;
            const uint32 vote = warp_ballot(set);
            peers &= set ? vote : ~vote;
        }
    }
    const uint32 lower = peers & ((1u << lane_rank()) - 1u);
    const uint32 before = active ? counts[digit] : 0;
    warp_sync(); // every lane has read before the first of each digit adds
    if (active && lower == 0) counts[digit] = before + count_bits(peers);
    warp_sync();
    return before + count_bits(lower);
}

template <typename KeyType> struct SortScatterShared {
    uint32 warp_digit_counts[SORT_WARPS][SORT_DIGITS]; // counts, then first ranks of each warp
    uint32 digit_positions[SORT_DIGITS];               // next free position of each digit in the output
    SumShared<uint32, SORT_BLOCK> sums;
};

static_assert(SORT_DIGITS % SORT_BLOCK == 0, "whole steps over the digits");
static_assert(SORT_ITEMS * WARP_WIDTH <= 65536, "a rank in a warp's items fits 16 bits");

// Counts the digits of this block's share. Table: digit-major, so that one scan orders digits, then blocks.
template <typename KeyType> DEVICE void sort_count(const SortParams &p) {
    struct Shared {
        uint32 warp_digit_counts[SORT_WARPS][SORT_DIGITS];
    };
    SHARED(Shared, shared);
    const KeyType *keys = (const KeyType *)p.keys_in;
    for (int i = thread_rank(); i < SORT_WARPS * SORT_DIGITS; i += SORT_BLOCK) (&shared.warp_digit_counts[0][0])[i] = 0;
    block_sync();

    const Share share = share_of_block(n_sort_items(p), SORT_STEP);
    for (uint32 first = share.begin; first < share.end; first += SORT_BLOCK) {
        const uint32 item = first + thread_rank();
        const bool active = item < share.end;
        rank_in_warp(active ? digit_of(keys[item], p) : 0, active, p.n_bits, shared.warp_digit_counts[warp_rank()]);
    }
    block_sync();

    for (uint32 digit = thread_rank(); digit < SORT_DIGITS; digit += SORT_BLOCK) {
        uint32 count = 0;
        for (int warp = 0; warp < SORT_WARPS; ++warp) count += shared.warp_digit_counts[warp][digit];
        p.digit_block_counts[digit * n_blocks() + block_rank()] = count;
    }
}

// One block a digit: its row of the table becomes each block's first position among the digit's items, and the
// digit's total stands behind the table. Scatter adds the totals of the lower digits itself.
DEVICE void sort_scan(const SortParams &p) {
    typedef SumShared<uint32, SORT_BLOCK> Shared;
    SHARED(Shared, shared);
    uint32 *row = p.digit_block_counts + block_rank() * p.n_blocks;
    uint32 before = 0;
    for (uint32 first = 0; first < p.n_blocks; first += SORT_BLOCK) {
        const uint32 block = first + thread_rank();
        const uint32 count = block < p.n_blocks ? row[block] : 0;
        uint32 total;
        const uint32 offset = block_exclusive_sum<uint32, SORT_BLOCK>(count, total, shared);
        if (block < p.n_blocks) row[block] = before + offset;
        before += total;
        block_sync(); // shared is written again
    }
    if (thread_rank() == 0) p.digit_totals[block_rank()] = before;
}

// Where each digit's items of this block go: after all lower digits, and after the earlier blocks' of its own.
DEVICE void first_positions(const SortParams &p, uint32 (&positions)[SORT_DIGITS],
                            SumShared<uint32, SORT_BLOCK> &shared) {
    uint32 before = 0;
    for (uint32 first = 0; first < SORT_DIGITS; first += SORT_BLOCK) {
        const uint32 digit = first + thread_rank();
        uint32 total;
        const uint32 lower = block_exclusive_sum<uint32, SORT_BLOCK>(p.digit_totals[digit], total, shared);
        positions[digit] = before + lower + p.digit_block_counts[digit * n_blocks() + block_rank()];
        before += total;
        block_sync(); // shared is written again
    }
}

// Moves this block's share, SORT_STEP items a step. A warp owns SORT_ITEMS rows of WARP_WIDTH neighbours,
// warps follow one another: rank order is input order, which makes the sort stable.
template <typename KeyType> DEVICE void sort_scatter(const SortParams &p) {
    SHARED(SortScatterShared<KeyType>, shared);
    const KeyType *keys_in = (const KeyType *)p.keys_in;
    KeyType *keys_out = (KeyType *)p.keys_out;
    first_positions(p, shared.digit_positions, shared.sums);

    const Share share = share_of_block(n_sort_items(p), SORT_STEP);
    for (uint32 step = share.begin; step < share.end; step += SORT_STEP) {
        for (int i = thread_rank(); i < SORT_WARPS * SORT_DIGITS; i += SORT_BLOCK)
            (&shared.warp_digit_counts[0][0])[i] = 0;
        block_sync();

        // rank every item among its warp's
        const uint32 first = step + warp_rank() * SORT_ITEMS * WARP_WIDTH + lane_rank();
        KeyType keys[SORT_ITEMS];
        uint16 ranks[SORT_ITEMS];
        for (int row = 0; row < SORT_ITEMS; ++row) {
            const uint32 item = first + row * WARP_WIDTH;
            const bool active = item < share.end;
            keys[row] = active ? keys_in[item] : KeyType(0);
            ranks[row] = uint16(rank_in_warp(digit_of(keys[row], p), active, p.n_bits,
                                             shared.warp_digit_counts[warp_rank()]));
        }
        block_sync();

        // each warp's counts become its first position in the output
        for (uint32 digit = thread_rank(); digit < SORT_DIGITS; digit += SORT_BLOCK) {
            uint32 position = shared.digit_positions[digit];
            for (int warp = 0; warp < SORT_WARPS; ++warp) {
                const uint32 count = shared.warp_digit_counts[warp][digit];
                shared.warp_digit_counts[warp][digit] = position;
                position += count;
            }
            shared.digit_positions[digit] = position;
        }
        block_sync();

        for (int row = 0; row < SORT_ITEMS; ++row) {
            const uint32 item = first + row * WARP_WIDTH;
            if (item < share.end) {
                const uint32 position = shared.warp_digit_counts[warp_rank()][digit_of(keys[row], p)] + ranks[row];
                keys_out[position] = keys[row];
                p.values_out[position] = p.values_in[item];
            }
        }
        block_sync(); // counts are cleared again
    }
}

} // namespace edgegs
