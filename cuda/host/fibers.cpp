// host-check: one block as fibers, one a CUDA thread. A fiber runs until it comes to a collective or ends; when
// a whole warp (or block) waits at the same place, the collective's results are handed out and it goes on.
// What CUDA leaves undefined is an error here: a collective that some threads miss (early return, divergent
// branch, unequal trips) is reported with the kernel, the block, the threads and the lines.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "fiber_switch.hpp"
#include "launch.hpp"

namespace edgegs {
namespace host {

uint64_t shuffle_seed = 0;

namespace {

constexpr int WARP = 32;
constexpr int MAX_THREADS = 1024;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t STACK_SIZE = 256 * 1024; // instrumented frames are larger
#else
constexpr size_t STACK_SIZE = 64 * 1024;
#endif
constexpr size_t STAGGER = 64; // equal offsets in every stack would share cache sets
constexpr size_t SHARED_SIZE = 48 * 1024;

enum State { RUNNABLE, WAITING, DONE };

struct Thread {
    Here place;
    FiberContext context;
    char *stack;
    State state;
    Site site;
    uint64_t value;
    int distance;
};

const char *kind_name(CollectiveKind kind) {
    switch (kind) {
    case BLOCK_SYNC: return "block_sync";
    case BLOCK_ALL: return "block_all";
    case WARP_SYNC: return "warp_sync";
    case WARP_BALLOT: return "warp_ballot";
    case WARP_SHUFFLE_UP: return "warp_shuffle_up";
    case WARP_SHUFFLE: return "warp_shuffle";
    case EXIT: return "exit";
    default: return "nothing";
    }
}

bool same_site(const Site &a, const Site &b) {
    return a.kind == b.kind && a.line == b.line && (a.kind == EXIT || std::strcmp(a.file, b.file) == 0);
}

bool is_warp_wide(CollectiveKind kind) { return kind >= WARP_SYNC && kind <= WARP_SHUFFLE; }

uint64_t next_random(uint64_t &state) { // splitmix64, Steele et al. 2014
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// Stacks and shared memory of one operating-system thread; kept from block to block.
class Block {
public:
    Block() {
        page = size_t(sysconf(_SC_PAGESIZE));
        shared = static_cast<char *>(aligned_alloc(64, SHARED_SIZE));
        if (!shared) std::abort();
    }
    ~Block() {
        for (char *area : areas) munmap(area, page + STACK_SIZE);
        std::free(shared);
    }
    bool run(const KernelEntry &kernel, unsigned block, unsigned n_blocks, const void *params, char *error,
             size_t error_size);
    void entry();
    uint64_t wait(Site site, uint64_t value, int distance);
    void *shared_memory(size_t size) { return size <= SHARED_SIZE ? shared : nullptr; }

private:
    bool settle(int first, int n);
    bool mismatch(int first, int n, char *error, size_t error_size);
    void grow(int n_threads);

    size_t page;
    char *shared;
    std::vector<char *> areas;
    Thread threads[MAX_THREADS];
    FiberContext scheduler;
    Thread *running = nullptr;
    const KernelEntry *kernel_ = nullptr;
    const void *params_ = nullptr;
    unsigned block_ = 0;
    int n_threads_ = 0;
};

thread_local std::unique_ptr<Block> current_block;

extern "C" void edgegs_fiber_entry() { current_block->entry(); }

void Block::grow(int n_threads) {
    while (int(areas.size()) < n_threads) {
        void *area = mmap(nullptr, page + STACK_SIZE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (area == MAP_FAILED || mprotect(area, page, PROT_NONE) != 0) {
            std::perror("edgegs host-check: a fiber's stack");
            std::abort();
        }
        threads[areas.size()].stack = static_cast<char *>(area) + page;
        areas.push_back(static_cast<char *>(area));
    }
}

void Block::entry() {
    finish_switch(running->context, &scheduler);
    kernel_->body(params_);
    running->state = DONE;
    running->site = {EXIT, 0, ""};
    switch_fiber(running->context, scheduler, /*last=*/true);
}

uint64_t Block::wait(Site site, uint64_t value, int distance) {
    Thread &thread = *running;
    thread.site = site;
    thread.value = value;
    thread.distance = distance;
    thread.state = WAITING;
    switch_fiber(thread.context, scheduler, false);
    return thread.value;
}

// Hands out a collective's results when all n threads from `first` wait at the same site.
bool Block::settle(int first, int n) {
    const Site &site = threads[first].site;
    for (int i = first; i < first + n; ++i)
        if (threads[i].state != WAITING || !same_site(threads[i].site, site)) return false;
    uint64_t bits = 0;
    bool all = true;
    uint64_t values[WARP];
    for (int i = 0; i < n; ++i) {
        const uint64_t value = threads[first + i].value;
        if (n <= WARP) {
            values[i] = value;
            if (value) bits |= 1ull << i;
        }
        all = all && value;
    }
    for (int i = 0; i < n; ++i) {
        Thread &thread = threads[first + i];
        if (site.kind == WARP_BALLOT) thread.value = bits;
        if (site.kind == BLOCK_ALL) thread.value = all;
        if (site.kind == WARP_SHUFFLE) thread.value = values[thread.distance & (WARP - 1)];
        if (site.kind == WARP_SHUFFLE_UP && i >= thread.distance) thread.value = values[i - thread.distance];
        thread.state = RUNNABLE;
    }
    return true;
}

bool Block::mismatch(int first, int n, char *error, size_t error_size) {
    const Thread &a = threads[first];
    for (int i = first + 1; i < first + n; ++i) {
        const Thread &b = threads[i];
        if (same_site(a.site, b.site)) continue;
        std::snprintf(error, error_size,
                      "collective mismatch in kernel %s, block %u: thread %d is at %s (%s:%d), thread %d at %s (%s:%d)",
                      kernel_->name, block_, first, kind_name(a.site.kind), a.site.file, a.site.line, i,
                      kind_name(b.site.kind), b.site.file, b.site.line);
        return true;
    }
    return false;
}

bool Block::run(const KernelEntry &kernel, unsigned block, unsigned n_blocks, const void *params, char *error,
                size_t error_size) {
    kernel_ = &kernel;
    params_ = params;
    block_ = block;
    n_threads_ = kernel.threads;
    grow(n_threads_);
    std::memset(shared, 0xff, SHARED_SIZE); // NaN and out-of-range indices for whoever reads before writing

    int order[MAX_THREADS];
    uint64_t random = shuffle_seed + block;
    for (int i = 0; i < n_threads_; ++i) {
        order[i] = i;
        if (shuffle_seed) {
            const int j = int(next_random(random) % uint64_t(i + 1));
            order[i] = order[j];
            order[j] = i;
        }
        Thread &thread = threads[i];
        thread.place = {block, n_blocks, i};
        thread.state = RUNNABLE;
        thread.site = {NONE, 0, ""};
        make_fiber(thread.context, thread.stack, STACK_SIZE - size_t(i % 32) * STAGGER);
    }

    for (;;) {
        bool moved = false;
        int n_done = 0;
        for (int i = 0; i < n_threads_; ++i) {
            Thread &thread = threads[order[i]];
            if (thread.state == RUNNABLE) {
                running = &thread;
                here = &thread.place;
                switch_fiber(scheduler, thread.context, false);
                moved = true;
            }
            n_done += thread.state == DONE;
        }
        if (n_done == n_threads_) return true;

        bool settled = false;
        for (int first = 0; first < n_threads_; first += WARP)
            if (is_warp_wide(threads[first].site.kind)) settled = settle(first, WARP) || settled;
        if (!settled) settled = settle(0, n_threads_);
        if (settled) continue;
        if (moved) {
            // nobody can go on: two threads of a warp, or of the block, are at different places
            for (int first = 0; first < n_threads_; first += WARP)
                if (mismatch(first, WARP, error, error_size)) return false;
            if (mismatch(0, n_threads_, error, error_size)) return false;
        }
        std::snprintf(error, error_size, "kernel %s, block %u: its threads wait for one another", kernel.name, block);
        return false;
    }
}

} // namespace

uint64_t collective(Site site, uint64_t value, int distance) { return current_block->wait(site, value, distance); }

void *shared_memory(size_t size) {
    void *memory = current_block->shared_memory(size);
    if (!memory) {
        std::fprintf(stderr, "edgegs host-check: %zu bytes of shared memory asked, 49152 are there\n", size);
        std::abort();
    }
    return memory;
}

bool run_block(const KernelEntry &kernel, unsigned block, unsigned n_blocks, const void *params, char *error,
               size_t error_size) {
    if (!current_block) current_block.reset(new Block);
    return current_block->run(kernel, block, n_blocks, params, error, error_size);
}

} // namespace host
} // namespace edgegs
