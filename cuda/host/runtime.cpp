// Blocks on the machine's threads, and the C functions that Python calls (edgegs/backends/host.py).
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "launch.hpp"

namespace edgegs {
namespace host {

thread_local Here *here = nullptr;

static const KernelEntry *first_kernel = nullptr;

KernelEntry::KernelEntry(const char *name_, int threads_, size_t params_size_, Body body_)
    : name(name_), threads(threads_), params_size(params_size_), body(body_), next(first_kernel) {
    first_kernel = this;
}

static const KernelEntry *find_kernel(const char *name) {
    for (const KernelEntry *k = first_kernel; k; k = k->next)
        if (std::strcmp(k->name, name) == 0) return k;
    return nullptr;
}

#ifndef EDGEGS_HOST_CHECK
bool run_block(const KernelEntry &kernel, unsigned block, unsigned n_blocks, const void *params, char *, size_t) {
    Here place = {block, n_blocks, 0};
    here = &place;
    kernel.body(params);
    return true;
}
#endif

// A launch: blocks are taken one at a time by whoever is free, the caller among them.
struct Launch {
    const KernelEntry *kernel;
    unsigned n_blocks;
    const void *params;
    std::atomic<unsigned> next_block{0};
    std::atomic<bool> failed{false};
    std::mutex error_lock;
    char *error;
    size_t error_size;

    void work() {
        char message[512];
        for (unsigned block; !failed && (block = next_block.fetch_add(1)) < n_blocks;) {
            if (run_block(*kernel, block, n_blocks, params, message, sizeof message)) continue;
            std::lock_guard<std::mutex> hold(error_lock);
            if (!failed) std::snprintf(error, error_size, "%s", message);
            failed = true;
        }
    }
};

class Pool {
public:
    explicit Pool(int n_threads) {
        try {
            for (int i = 1; i < n_threads; ++i) threads.emplace_back([this] { serve(); });
        } catch (const std::exception &) { // the system gives no more: end those that started
            stop();
            throw;
        }
    }
    ~Pool() { stop(); }
    void stop() {
        {
            std::lock_guard<std::mutex> hold(lock);
            stopping = true;
        }
        wake.notify_all();
        for (std::thread &thread : threads) thread.join();
    }
    void run(Launch &launch) {
        if (launch.n_blocks > 1 && !threads.empty()) {
            {
                std::lock_guard<std::mutex> hold(lock);
                current = &launch;
                ++generation;
            }
            wake.notify_all();
        }
        launch.work();
        std::unique_lock<std::mutex> hold(lock);
        current = nullptr;
        done.wait(hold, [this] { return n_working == 0; });
    }
    int n_threads() const { return int(threads.size()) + 1; }

private:
    void serve() {
        unsigned seen = 0;
        std::unique_lock<std::mutex> hold(lock);
        for (;;) {
            wake.wait(hold, [&] { return stopping || (current && generation != seen); });
            if (stopping) return;
            seen = generation;
            Launch *launch = current;
            ++n_working;
            hold.unlock();
            launch->work();
            hold.lock();
            if (--n_working == 0) done.notify_all();
        }
    }

    std::vector<std::thread> threads;
    std::mutex lock;
    std::condition_variable wake, done;
    Launch *current = nullptr;
    unsigned generation = 0;
    int n_working = 0;
    bool stopping = false;
};

} // namespace host
} // namespace edgegs

using namespace edgegs::host;

extern "C" {

// A pool of n_threads operating-system threads, the caller's own included; null when they cannot be had.
void *edgegs_host_create(int n_threads) {
    try {
        return new Pool(n_threads < 1 ? 1 : n_threads);
    } catch (const std::exception &) {
        return nullptr;
    }
}

void edgegs_host_destroy(void *pool) { delete static_cast<Pool *>(pool); }

// 0 when the launch ran; else 1 and a message.
int edgegs_host_launch(void *pool, const char *name, unsigned n_blocks, const void *params, size_t params_size,
                       char *error, size_t error_size) {
    const KernelEntry *kernel = find_kernel(name);
    if (!kernel) {
        std::snprintf(error, error_size, "no kernel named %s in this build", name);
        return 1;
    }
    if (kernel->params_size != params_size) {
        std::snprintf(error, error_size, "%s takes %zu bytes of parameters, got %zu", name, kernel->params_size,
                      params_size);
        return 1;
    }
    Launch launch;
    launch.kernel = kernel;
    launch.n_blocks = n_blocks;
    launch.params = params;
    launch.error = error;
    launch.error_size = error_size;
    static_cast<Pool *>(pool)->run(launch);
    return launch.failed ? 1 : 0;
}

// The name of the index-th kernel, or null after the last.
const char *edgegs_host_kernel(unsigned index) {
    const KernelEntry *k = first_kernel;
    for (; k && index > 0; --index) k = k->next;
    return k ? k->name : nullptr;
}

#ifdef EDGEGS_HOST_CHECK
void edgegs_host_shuffle(uint64_t seed) { shuffle_seed = seed; }
#endif
}
