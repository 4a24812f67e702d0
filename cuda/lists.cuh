// The lists of key `bins` (see bins.cuh):
//
//   fill_lists    instances into the lists, in any order
//   sort_lists    each list front to back, in shared memory; equal depths by the splat's index, so order is no chance
#pragma once

namespace edgegs {

// Moves the instances to their bins' lists, in any order: a block counts its share's, takes so many places of each list
// at once, and fills them.
DEVICE void fill_lists(const FrameParams &p) {
    constexpr int THREADS = block_threads(FILL_THREADS);
    struct Shared {
        uint32 next[MAX_BINS];
    };
    SHARED(Shared, shared);
    const uint32 n_bins = p.n_bins_x * p.n_bins_y;
    const bool counts_first = n_bins <= MAX_BINS;
    const uint64 counted = *p.n_instances;
    const Share share = share_of_block(uint32(counted < p.instance_capacity ? counted : p.instance_capacity), THREADS);
    if (share.begin == share.end) return; // the whole block
    if (counts_first) {
        for (uint32 bin = thread_rank(); bin < n_bins; bin += THREADS) shared.next[bin] = 0;
        block_sync();
        for (uint32 i = share.begin + thread_rank(); i < share.end; i += THREADS) {
            const BinInstance instance = p.bin_instances[i];
            if (instance.mask != 0) fetch_add(shared.next + instance.bin, 1u);
        }
        block_sync();
        for (uint32 bin = thread_rank(); bin < n_bins; bin += THREADS) {
            const uint32 count = shared.next[bin];
            if (count > 0) shared.next[bin] = p.bin_starts[bin] + fetch_add(p.bin_counts + bin, count);
        }
        block_sync();
    }
    for (uint32 i = share.begin + thread_rank(); i < share.end; i += THREADS) {
        const BinInstance instance = p.bin_instances[i];
        if (instance.mask == 0) continue;
        const uint32 place = counts_first ? fetch_add(shared.next + instance.bin, 1u)
                                          : p.bin_starts[instance.bin] + fetch_add(p.bin_counts + instance.bin, 1u);
        p.list_entries[place] = instance;
    }
}

// --- sort_lists ---

constexpr int LIST_BLOCK = block_threads(LIST_THREADS);
constexpr int LIST_ITEMS = LIST_CAPACITY / LIST_BLOCK;

struct ListShared {
    uint32 keys[LIST_CAPACITY];
    uint32 places[LIST_CAPACITY]; // in the list as it was emitted
    // of each bucket, and the total; three more, because a compiler reads `sums` in aligned fours, and racecheck takes the
    // word before it for read
    uint32 starts[LIST_BUCKETS + 4];
    SumShared<uint32, LIST_BLOCK> sums;
    uint32 n_taken, found;
    uint32 nearest, farthest, is_skewed;
};

// Counts become first places; the total stands behind them.
DEVICE void sum_buckets(ListShared &shared) {
    constexpr int EACH = LIST_BUCKETS / LIST_BLOCK;
    uint32 *mine = shared.starts + thread_rank() * EACH;
    uint32 sum = 0, total;
    for (int i = 0; i < EACH; ++i) sum += mine[i];
    uint32 before = block_exclusive_sum<uint32, LIST_BLOCK>(sum, total, shared.sums);
    for (int i = 0; i < EACH; ++i) {
        const uint32 count = mine[i];
        mine[i] = before;
        before += count;
    }
    if (thread_rank() == 0) shared.starts[LIST_BUCKETS] = total;
    block_sync();
}

DEVICE void clear_buckets(ListShared &shared) {
    for (int i = thread_rank(); i < LIST_BUCKETS; i += LIST_BLOCK) shared.starts[i] = 0;
}

DEVICE uint64 rank_key(const BinInstance &entry) { return uint64(entry.depth) << 32 | entry.splat; }

// For lists longer than LIST_CAPACITY: the end of a range of ranks from `low` that holds at least half as many entries,
// and not more. Histograms of ever finer ranges; ranks are unique, so that the finest always serves.
DEVICE uint64 end_of_range(ListShared &shared, const BinInstance *entries, uint32 n, uint64 low) {
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
        for (uint32 i = thread_rank(); i < n; i += LIST_BLOCK) {
            const uint64 rank = rank_key(entries[i]);
            if (rank >= from && rank < top) fetch_add(shared.starts + uint32((rank - from) >> shift), 1u);
        }
        block_sync();
        sum_buckets(shared);
        for (int i = thread_rank(); i < LIST_BUCKETS; i += LIST_BLOCK)
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

// Copies the entries of ranks [low, high) to shared memory, in any order.
DEVICE void take_range(ListShared &shared, const BinInstance *entries, uint32 n, uint64 low, uint64 high) {
    if (thread_rank() == 0) shared.n_taken = 0;
    block_sync();
    for (uint32 i = thread_rank(); i < n; i += LIST_BLOCK) {
        const uint64 rank = rank_key(entries[i]);
        if (rank >= low && rank < high) {
            const uint32 place = fetch_add(&shared.n_taken, 1u);
            shared.keys[place] = entries[i].depth;
            shared.places[place] = i;
        }
    }
}

DEVICE bool comes_before(const ListShared &shared, const BinInstance *entries, uint32 a, uint32 b) {
    if (shared.keys[a] != shared.keys[b]) return shared.keys[a] < shared.keys[b];
    const uint32 place_a = shared.places[a], place_b = shared.places[b];
    return place_a != place_b && entries[place_a].splat < entries[place_b].splat;
}

// Batcher's bitonic sort (1968) in place, whatever the depths: for lists that buckets do not spread.
DEVICE void sort_skewed(ListShared &shared, const BinInstance *entries, uint32 n) {
    uint32 size = 1;
    while (size < n) size *= 2;
    for (uint32 i = n + thread_rank(); i < size; i += LIST_BLOCK) shared.keys[i] = shared.places[i] = 0xffffffffu;
    block_sync();
    for (uint32 run = 2; run <= size; run *= 2) {
        for (uint32 distance = run / 2; distance > 0; distance /= 2) {
            for (uint32 i = thread_rank(); i < size; i += LIST_BLOCK) {
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

// Sorts what shared memory holds into the output. One pass by linear buckets between the nearest and farthest depth,
// then each entry counts those of its bucket that come before it: about one, where depths are spread.
DEVICE void sort_taken(const FrameParams &p, ListShared &shared, const BinInstance *entries, uint32 n, uint32 output) {
    uint32 keys[LIST_ITEMS], places[LIST_ITEMS], ranks[LIST_ITEMS];
    uint32 nearest = 0xffffffffu, farthest = 0;
    for (int i = 0; i < LIST_ITEMS && uint32(i * LIST_BLOCK) < n; ++i) {
        const uint32 item = i * LIST_BLOCK + thread_rank();
        if (item < n) {
            keys[i] = shared.keys[item];
            places[i] = shared.places[item];
            if (keys[i] < nearest) nearest = keys[i];
            if (keys[i] > farthest) farthest = keys[i];
        }
    }
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
    clear_buckets(shared);
    block_sync();
    if (lane_rank() == 0) {
        fetch_min(&shared.nearest, nearest);
        fetch_max(&shared.farthest, farthest);
    }
    block_sync();
    nearest = shared.nearest;
    const float scale = float(LIST_BUCKETS) / (float(shared.farthest - nearest) + 1.0f);
    const auto bucket_of = [&](uint32 key) {
        const uint32 bucket = uint32(float(key - nearest) * scale);
        return bucket < LIST_BUCKETS ? bucket : LIST_BUCKETS - 1u;
    };

    for (int i = 0; i < LIST_ITEMS && uint32(i * LIST_BLOCK) < n; ++i) {
        if (uint32(i * LIST_BLOCK + thread_rank()) < n) {
            ranks[i] = fetch_add(shared.starts + bucket_of(keys[i]), 1u);
            if (ranks[i] == LIST_SKEW) fetch_max(&shared.is_skewed, 1u);
        }
    }
    block_sync();
    if (shared.is_skewed) {
        sort_skewed(shared, entries, n);
        for (uint32 item = thread_rank(); item < n; item += LIST_BLOCK) {
            p.list_splats[output + item] = entries[shared.places[item]].splat;
            p.list_masks[output + item] = entries[shared.places[item]].mask;
        }
        return; // the whole block
    }
    sum_buckets(shared);
    for (int i = 0; i < LIST_ITEMS && uint32(i * LIST_BLOCK) < n; ++i) {
        if (uint32(i * LIST_BLOCK + thread_rank()) < n) {
            const uint32 place = shared.starts[bucket_of(keys[i])] + ranks[i];
            shared.keys[place] = keys[i];
            shared.places[place] = places[i];
        }
    }
    block_sync();

    for (uint32 item = thread_rank(); item < n; item += LIST_BLOCK) {
        const uint32 key = shared.keys[item];
        const BinInstance entry = entries[shared.places[item]];
        const uint32 bucket = bucket_of(key), begin = shared.starts[bucket], end = shared.starts[bucket + 1];
        uint32 place = begin;
        for (uint32 other = begin; other < end; ++other) {
            if (shared.keys[other] < key)
                ++place;
            else if (shared.keys[other] == key && other != item)
                place += entries[shared.places[other]].splat < entry.splat;
        }
        p.list_splats[output + place] = entry.splat;
        p.list_masks[output + place] = entry.mask;
    }
}

// A block a bin.
DEVICE void sort_lists(const FrameParams &p) {
    SHARED(ListShared, shared);
    const uint32 begin = p.bin_starts[block_rank()], n = p.bin_starts[block_rank() + 1] - begin;
    const BinInstance *entries = p.list_entries + begin;
    if (thread_rank() == 0) { // for the next frame
        p.bin_counts[block_rank()] = 0;
        if (block_rank() == 0) *p.instance_ticket = 0;
    }
    uint32 done = 0;
    uint64 low = 0;
    while (done < n) { // once, but for long lists
        uint32 n_taken = n;
        if (n <= LIST_CAPACITY) {
            for (uint32 i = thread_rank(); i < n; i += LIST_BLOCK) {
                shared.keys[i] = entries[i].depth;
                shared.places[i] = i;
            }
            block_sync();
        } else {
            const uint64 high = n - done <= LIST_CAPACITY ? 1ull << 63 : end_of_range(shared, entries, n, low);
            take_range(shared, entries, n, low, high);
            block_sync();
            n_taken = shared.n_taken;
            low = high;
        }
        sort_taken(p, shared, entries, n_taken, begin + done);
        done += n_taken;
        block_sync(); // shared is written again
    }
}

} // namespace edgegs
