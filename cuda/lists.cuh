// The lists of key `bins` (see bins.cuh):
//
//   fill_lists    instances into the lists, in any order; the first block orders the bins, the longest lists first, and
//                 says how many blocks share each list's sorting
//   sort_lists    each list front to back, in shared memory; equal depths by the splat's index, so order is no chance
#pragma once

namespace edgegs {

struct FillShared {
    uint32 next[MAX_BINS];
};

// Lists of one class differ by at most a quarter. The longest lists are of class 124.
DEVICE uint32 length_class(uint32 n) { return (float_bits(float(n + 1u)) >> 21) - (127u << 2); }

// How many blocks sort a list of n entries, where a block's fair part of all lists is `fair`.
DEVICE uint32 sharers_of(uint32 n, uint32 fair) {
    if (n <= LIST_CAPACITY) return 1;
    const uint32 sharers = (n + fair - 1) / fair;
    return sharers < LIST_PARTS ? sharers : LIST_PARTS;
}

// The bins, the longest lists first, for the rasterizer; and the blocks that sort the lists, in the same order: what takes
// longest begins first, and the last blocks end together.
DEVICE void order_bins(const FrameParams &p, FillShared &shared) {
    constexpr int THREADS = block_threads(FILL_THREADS), CLASSES = 128;
    static_assert(4 * CLASSES <= MAX_BINS, "four tables in one");
    const uint32 n_bins = p.n_bins_x * p.n_bins_y;
    // the lists of more than a fair part have no more blocks besides their first than there are fair parts
    const uint32 n_sharing = p.n_list_shares - n_bins, even = p.bin_starts[n_bins] / n_sharing + 1;
    const uint32 fair = even < LIST_CAPACITY / 2 ? LIST_CAPACITY / 2 : even;
    uint32 *lists = shared.next, *shares = lists + CLASSES, *first_lists = shares + CLASSES, *first_shares = first_lists + CLASSES;
    for (int i = thread_rank(); i < 2 * CLASSES; i += THREADS) shared.next[i] = 0;
    block_sync();
    for (uint32 bin = thread_rank(); bin < n_bins; bin += THREADS) {
        const uint32 n = p.bin_starts[bin + 1] - p.bin_starts[bin];
        fetch_add(lists + length_class(n), 1u);
        fetch_add(shares + length_class(n), sharers_of(n, fair));
    }
    block_sync();
    for (int i = thread_rank(); i < 2 * CLASSES; i += THREADS) {
        uint32 longer = 0;
        for (int other = i + 1; other < (i < CLASSES ? 1 : 2) * CLASSES; ++other) longer += shared.next[other];
        first_lists[i] = longer;
    }
    block_sync();
    for (uint32 bin = thread_rank(); bin < n_bins; bin += THREADS) {
        const uint32 begin = p.bin_starts[bin], end = p.bin_starts[bin + 1];
        const uint32 n_sharers = sharers_of(end - begin, fair);
        p.bin_order[fetch_add(first_lists + length_class(end - begin), 1u)] = {
            begin, end, bin % p.n_bins_x << p.bin_shift, bin / p.n_bins_x << p.bin_shift};
        const uint32 first = fetch_add(first_shares + length_class(end - begin), n_sharers);
        for (uint32 share = 0; share < n_sharers; ++share) p.list_shares[first + share] = {begin, end, share, n_sharers};
    }
    block_sync();
    const uint32 n_shares = first_shares[0]; // the shortest lists' come last
    for (uint32 i = n_shares + thread_rank(); i < p.n_list_shares; i += THREADS) p.list_shares[i] = {0, 0, 0, 1};
}

// Moves the instances to their bins' lists, in any order: a block reads some, counts how many each list gets, takes so
// many places of it at once, and fills them.
DEVICE void fill_lists(const FrameParams &p) {
    // in host-fast one thread reads what a block does
    constexpr int THREADS = block_threads(FILL_THREADS), ITEMS = FILL_ITEMS * FILL_THREADS / THREADS;
    SHARED(FillShared, shared);
    wait_for_previous();
    if (block_rank() == 0) {
        order_bins(p, shared);
        return; // the whole block
    }
    const uint32 n_bins = p.n_bins_x * p.n_bins_y;
    const bool counts_first = n_bins <= MAX_BINS; // else it counts in memory
    const uint64 counted = *p.n_instances;
    const uint32 n_instances = uint32(counted < p.instance_capacity ? counted : p.instance_capacity);
    const Share share = share_of_block(n_instances, THREADS, block_rank() - 1, n_blocks() - 1);
    for (uint32 begin = share.begin; begin < share.end; begin += ITEMS * THREADS) {
        for (uint32 bin = thread_rank(); counts_first && bin < n_bins; bin += THREADS) shared.next[bin] = 0;
        BinInstance instances[ITEMS];
        uint32 ranks[ITEMS]; // among those that go to the same list
        for (int i = 0; i < ITEMS; ++i) {
            const uint32 place = begin + i * THREADS + thread_rank();
            if (place < share.end) instances[i] = p.bin_instances[place];
            if (place >= share.end) instances[i].mask = 0;
        }
        block_sync();
        uint32 *counts = counts_first ? shared.next : p.bin_counts;
        for (int i = 0; i < ITEMS; ++i)
            if (instances[i].mask != 0) ranks[i] = fetch_add(counts + instances[i].bin, 1u);
        block_sync();
        for (uint32 bin = thread_rank(); counts_first && bin < n_bins; bin += THREADS) {
            const uint32 count = shared.next[bin];
            if (count > 0) shared.next[bin] = p.bin_starts[bin] + fetch_add(p.bin_counts + bin, count);
        }
        block_sync();
        const uint32 *firsts = counts_first ? shared.next : p.bin_starts;
        for (int i = 0; i < ITEMS; ++i)
            if (instances[i].mask != 0) p.list_entries[firsts[instances[i].bin] + ranks[i]] = instances[i];
        block_sync(); // shared is written again
    }
}

// --- sort_lists ---

template <int THREADS> struct ListShared {
    uint32 keys[LIST_CAPACITY];
    uint32 places[LIST_CAPACITY]; // in the list as it was emitted
    // of each bucket, and the total; three more, because a compiler reads `sums` in aligned fours, and racecheck takes the
    // word before it for read
    uint32 starts[LIST_BUCKETS + 4];
    SumShared<uint32, THREADS> sums;
    uint32 parts[LIST_PARTS + 1]; // of a list that is dealt, where each begins
    uint32 nearest, farthest, is_skewed, found;
    uint32 first_bucket, end_bucket; // of the block's parts
};

// Counts become first places; the total stands behind them. is_skewed is set where one has more than `most`.
template <int THREADS> DEVICE void sum_buckets(ListShared<THREADS> &shared, uint32 most) {
    constexpr int EACH = LIST_BUCKETS / THREADS;
    uint32 *mine = shared.starts + thread_rank() * EACH;
    uint32 sum = 0, total;
    bool is_skewed = false;
    for (int i = 0; i < EACH; ++i) {
        sum += mine[i];
        is_skewed |= mine[i] > most;
    }
    if (is_skewed) fetch_max(&shared.is_skewed, 1u);
    uint32 before = block_exclusive_sum<uint32, THREADS>(sum, total, shared.sums);
    for (int i = 0; i < EACH; ++i) {
        const uint32 count = mine[i];
        mine[i] = before;
        before += count;
    }
    if (thread_rank() == 0) shared.starts[LIST_BUCKETS] = total;
    block_sync();
}

template <int THREADS> DEVICE void clear_buckets(ListShared<THREADS> &shared) {
    ROLLED for (int i = thread_rank(); i < LIST_BUCKETS; i += THREADS) shared.starts[i] = 0;
}

DEVICE uint64 rank_key(const BinInstance &entry) { return uint64(entry.depth) << 32 | entry.splat; }

struct AllEntries {
    DEVICE bool operator()(const BinInstance &) const { return true; }
};

struct RankRange {
    uint64 low, high;

    DEVICE bool operator()(const BinInstance &entry) const { return rank_key(entry) >= low && rank_key(entry) < high; }
};

// For lists that are longer than LIST_CAPACITY and are not dealt: the end of a range of ranks from `low` that holds
// between half of LIST_CAPACITY entries and all of it. Histograms of ever finer ranges; ranks are unique, so that the finest always serves.
template <int THREADS>
DEVICE uint64 end_of_range(ListShared<THREADS> &shared, const BinInstance *entries, uint32 n, uint64 low) {
    uint32 kept = 0; // entries from low to here
    uint64 from = low;
    int bits = 63; // a rank is less than 2^63
    uint64 top = 1ull << 63;
    while (true) {
        while (bits > 0 && !((top - from - 1) >> (bits - 1))) --bits;
        const int shift = bits > LIST_BUCKET_BITS ? bits - LIST_BUCKET_BITS : 0;
        clear_buckets(shared);
        if (thread_rank() == 0) shared.found = LIST_BUCKETS;
        block_sync();
        ROLLED for (uint32 i = thread_rank(); i < n; i += THREADS) {
            const uint64 rank = rank_key(entries[i]);
            if (rank >= from && rank < top) fetch_add(shared.starts + uint32((rank - from) >> shift), 1u);
        }
        block_sync();
        sum_buckets(shared, 0xffffffffu);
        ROLLED for (int i = thread_rank(); i < LIST_BUCKETS; i += THREADS)
            if (kept + shared.starts[i] <= LIST_CAPACITY && kept + shared.starts[i + 1] > LIST_CAPACITY) shared.found = i;
        block_sync();
        const uint32 bucket = shared.found;
        kept += shared.starts[bucket];
        from += uint64(bucket) << shift;
        block_sync(); // shared is written again
        if (kept >= LIST_CAPACITY / 2 || shift == 0) return from;
        top = from + (1ull << shift);
    }
}

template <int THREADS>
DEVICE bool comes_before(const ListShared<THREADS> &shared, const BinInstance *entries, uint32 a, uint32 b) {
    if (shared.keys[a] != shared.keys[b]) return shared.keys[a] < shared.keys[b];
    const uint32 place_a = shared.places[a], place_b = shared.places[b];
    return place_a != place_b && entries[place_a].splat < entries[place_b].splat;
}

// Batcher's bitonic sort (1968) in place, whatever the depths: for lists that buckets do not spread.
template <int THREADS> DEVICE void sort_skewed(ListShared<THREADS> &shared, const BinInstance *entries, uint32 n) {
    uint32 size = 1;
    while (size < n) size *= 2;
    ROLLED for (uint32 i = n + thread_rank(); i < size; i += THREADS) shared.keys[i] = shared.places[i] = 0xffffffffu;
    block_sync();
    for (uint32 run = 2; run <= size; run *= 2) {
        for (uint32 distance = run / 2; distance > 0; distance /= 2) {
            ROLLED for (uint32 i = thread_rank(); i < size; i += THREADS) {
                const uint32 other = i ^ distance;
                if (other < i || comes_before(shared, entries, other, i) != ((i & run) == 0)) continue;
                const uint32 key = shared.keys[i], place = shared.places[i];
                shared.keys[i] = shared.keys[other];
                shared.places[i] = shared.places[other];
                shared.keys[other] = key;
                shared.places[other] = place;
            }
            block_sync();
        }
    }
}

// Nearest and farthest depth of the block's entries, from those of each thread.
template <int THREADS> DEVICE void find_extent(ListShared<THREADS> &shared, uint32 nearest, uint32 farthest) {
    for (int distance = WARP_WIDTH / 2; distance > 0; distance /= 2) {
        const uint32 near = warp_shuffle(nearest, (lane_rank() + distance) % WARP_WIDTH);
        const uint32 far = warp_shuffle(farthest, (lane_rank() + distance) % WARP_WIDTH);
        if (near < nearest) nearest = near;
        if (far > farthest) farthest = far;
    }
    if (thread_rank() == 0) {
        shared.nearest = 0xffffffffu;
        shared.farthest = 0;
        shared.is_skewed = 0;
    }
    block_sync();
    if (lane_rank() == 0) {
        fetch_min(&shared.nearest, nearest);
        fetch_max(&shared.farthest, farthest);
    }
    block_sync();
}

// Even steps of depth from the nearest to the farthest entry.
struct Buckets {
    uint32 nearest;
    float scale;

    DEVICE uint32 operator()(uint32 depth) const {
        const uint32 bucket = uint32(float(depth - nearest) * scale);
        return bucket < LIST_BUCKETS ? bucket : LIST_BUCKETS - 1u;
    }
};

// Counts the entries into buckets, and the counts become first places; is_skewed is set where one has more than `most`.
template <int THREADS, typename Filter>
DEVICE Buckets spread_entries(ListShared<THREADS> &shared, const BinInstance *entries, uint32 n, const Filter &is_in,
                              uint32 most) {
    uint32 nearest = 0xffffffffu, farthest = 0;
    ROLLED for (uint32 i = thread_rank(); i < n; i += THREADS) {
        if (!is_in(entries[i])) continue;
        const uint32 depth = entries[i].depth;
        if (depth < nearest) nearest = depth;
        if (depth > farthest) farthest = depth;
    }
    clear_buckets(shared);
    find_extent(shared, nearest, farthest);
    const Buckets bucket_of = {shared.nearest, float(LIST_BUCKETS) / (float(shared.farthest - shared.nearest) + 1.0f)};
    ROLLED for (uint32 i = thread_rank(); i < n; i += THREADS)
        if (is_in(entries[i])) fetch_add(shared.starts + bucket_of(entries[i].depth), 1u);
    block_sync();
    sum_buckets(shared, most);
    return bucket_of;
}

// Sorts the entries that the filter takes, at most LIST_CAPACITY, into the output; their number. One pass by buckets,
// then each entry counts those of its bucket that come before it: about one, where depths are spread. What is read
// again stands in the cache: registers are few.
template <int THREADS, typename Filter>
DEVICE uint32 sort_entries(const FrameParams &p, ListShared<THREADS> &shared, const BinInstance *entries, uint32 n,
                           const Filter &is_in, uint32 output) {
    const Buckets bucket_of = spread_entries(shared, entries, n, is_in, LIST_SKEW);
    const uint32 n_taken = shared.starts[LIST_BUCKETS];
    ROLLED for (uint32 i = thread_rank(); i < n; i += THREADS) { // a bucket's start moves to its end
        if (!is_in(entries[i])) continue;
        const uint32 place = fetch_add(shared.starts + bucket_of(entries[i].depth), 1u);
        shared.keys[place] = entries[i].depth;
        shared.places[place] = i;
    }
    block_sync();
    if (shared.is_skewed) {
        sort_skewed(shared, entries, n_taken);
        ROLLED for (uint32 item = thread_rank(); item < n_taken; item += THREADS) {
            p.bin_lists[output + item] = {entries[shared.places[item]].splat, entries[shared.places[item]].mask};
        }
        block_sync(); // shared is written again
        return n_taken; // the whole block
    }
    ROLLED for (uint32 item = thread_rank(); item < n_taken; item += THREADS) {
        const BinInstance entry = entries[shared.places[item]]; // on its way while its place is found
        const uint32 depth = shared.keys[item], bucket = bucket_of(depth);
        const uint32 begin = bucket > 0 ? shared.starts[bucket - 1] : 0, end = shared.starts[bucket];
        // where depths crowd this is most of the work: signs of differences, which fit (depths are below 2^31), no branches
        uint32 n_nearer = 0, n_farther = 0;
        ROLLED for (uint32 other = begin; other < end; ++other) {
            n_nearer += (shared.keys[other] - depth) >> 31;
            n_farther += (depth - shared.keys[other]) >> 31;
        }
        uint32 place = begin + n_nearer;
        if (n_nearer + n_farther + 1 < end - begin) { // some are equal
            ROLLED for (uint32 other = begin; other < end; ++other)
                if (shared.keys[other] == depth && other != item) place += entries[shared.places[other]].splat < entry.splat;
        }
        p.bin_lists[output + place] = {entry.splat, entry.mask};
    }
    block_sync(); // shared is written again
    return n_taken;
}

// Deals a list by buckets into parts, one behind the other; of these the block deals its share. Where each begins stands
// in shared.parts. False where a bucket is too full for that. Parts fit into shared memory unless there would be more than
// LIST_PARTS.
template <int THREADS>
DEVICE bool deal_list(ListShared<THREADS> &shared, const BinInstance *entries, const ListShare &list, BinInstance *dealt,
                      Span &own) {
    const uint32 n = list.end - list.begin;
    // of a part, and what its last bucket has beyond that, which is no more
    const uint32 least = LIST_CAPACITY / 2, part_size = n / LIST_PARTS < least ? least : n / LIST_PARTS + 1;
    const Buckets bucket_of = spread_entries(shared, entries, n, AllEntries(), part_size);
    const uint32 n_parts = shared.starts[LIST_BUCKETS - 1] / part_size + 1;
    const bool is_skewed = shared.is_skewed;
    if (thread_rank() == 0) {
        shared.parts[n_parts] = n;
        shared.end_bucket = LIST_BUCKETS;
    }
    block_sync();
    if (is_skewed) return false; // the whole block
    own = {n_parts * list.share / list.n_shares, n_parts * (list.share + 1) / list.n_shares};
    ROLLED for (int i = thread_rank(); i < LIST_BUCKETS; i += THREADS) {
        const uint32 part = shared.starts[i] / part_size;
        if (i > 0 && shared.starts[i - 1] / part_size == part) continue;
        shared.parts[part] = shared.starts[i];
        if (part == own.begin) shared.first_bucket = i;
        if (part == own.end) shared.end_bucket = i;
    }
    block_sync();
    const uint32 first_bucket = shared.first_bucket, n_buckets = shared.end_bucket - first_bucket;
    ROLLED for (uint32 i = thread_rank(); i < n; i += THREADS) {
        const BinInstance entry = entries[i];
        const uint32 bucket = bucket_of(entry.depth);
        if (bucket - first_bucket < n_buckets) dealt[fetch_add(shared.starts + bucket, 1u)] = entry;
    }
    block_sync();
    return true;
}

// Sorts entries, however many, into the output: all at once, or range by range.
template <int THREADS>
DEVICE void sort_any(const FrameParams &p, ListShared<THREADS> &shared, const BinInstance *entries, uint32 n,
                     uint32 output) {
    if (n <= LIST_CAPACITY) {
        sort_entries(p, shared, entries, n, AllEntries(), output);
        return; // the whole block
    }
    RankRange range = {0, 0};
    for (uint32 done = 0; done < n;) {
        range.high = n - done <= LIST_CAPACITY ? 1ull << 63 : end_of_range(shared, entries, n, range.low);
        done += sort_entries(p, shared, entries, n, range, output + done);
        range.low = range.high;
    }
}

// A block a list, or a share of a long one.
template <int CUDA_THREADS> DEVICE void sort_lists(const FrameParams &p) {
    constexpr int THREADS = block_threads(CUDA_THREADS);
    SHARED(ListShared<THREADS>, shared);
    wait_for_previous();
    if (thread_rank() == 0) { // for the next frame
        if (block_rank() < p.n_bins_x * p.n_bins_y) p.bin_counts[block_rank()] = 0;
        if (block_rank() == 0) *p.instance_ticket = 0;
    }
    const ListShare list = p.list_shares[block_rank()];
    const uint32 begin = list.begin, n = list.end - begin;
    const BinInstance *entries = p.list_entries + begin;
    if (n == 0) return; // the whole block
    Span parts = {0, 0};
    BinInstance *dealt = p.bin_instances + begin; // nobody needs them any more
    const bool is_long = n > 2 * LIST_CAPACITY || list.n_shares > 1;
    if (!(is_long && deal_list(shared, entries, list, dealt, parts)) && list.share == 0)
        sort_any(p, shared, entries, n, begin);
    for (uint32 part = parts.begin; part < parts.end; ++part) {
        const uint32 first = shared.parts[part], n_part = shared.parts[part + 1] - first;
        sort_any(p, shared, dealt + first, n_part, begin + first);
    }
}

} // namespace edgegs
