#include "pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace xrt {
namespace {

constexpr int kMaxWorkers = 255;
constexpr int kRangesPerThread = 4;  // more than 1, so that a delayed thread does not delay the whole call
// Waking a sleeping thread takes tens of microseconds, which is longer than the time between the steps of a tape. Therefore
// threads spin before they sleep, but not long, because they take processor time from other threads.
constexpr std::chrono::microseconds kSpin(20);

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until the condition holds or kSpin has passed. Returns whether it holds.
template <class Condition>
bool spin(Condition holds) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (holds()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return holds();
}

// Whether this thread is in a body. There it must not wait for other threads, which may be waiting for it.
thread_local bool is_in_body = false;

// One call of `parallel`. It is on the stack of its caller, which waits until no worker uses it.
struct Job {
  xrt_body body;
  void *argument;
  int64_t items;
  int64_t range;                     // items per call of the body
  int open_places;                   // number of workers that may still join; guarded by the mutex of the pool
  Job *next_job = nullptr;           // in the list of open jobs; guarded by the mutex of the pool
  std::atomic<int64_t> next_item{0};  // the first item that no thread has started
  std::atomic<int> workers{0};        // workers that have joined and not finished

  void work() {
    is_in_body = true;
    for (int64_t begin; (begin = next_item.fetch_add(range, std::memory_order_relaxed)) < items;) {
      body(argument, begin, std::min(begin + range, items));
    }
    is_in_body = false;
  }
};

class Pool {
 public:
  void run(Job *job) {
    publish(job);
    job->work();
    finish(job);
  }

  // Starts workers until there are `count`, or the system refuses to start another.
  void grow(int count) {
    if (size_.load(std::memory_order_relaxed) >= count) return;
    std::lock_guard<std::mutex> lock(mutex_);
    while (size_.load(std::memory_order_relaxed) < count && start()) size_.fetch_add(1, std::memory_order_relaxed);
  }

  int size() const { return size_.load(std::memory_order_relaxed); }

 private:
  // Starts a worker with all signals blocked, because Python handles signals in its main thread. Returns whether it started.
  bool start() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = true;
    try {
      std::thread([this] { run_worker(); }).detach();
    } catch (const std::system_error &) {
      started = false;  // the system allows no more threads
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  void run_worker() {
    for (;;) {
      Job *job = join();
      job->work();
      // The caller may delete the job as soon as its count of workers is 0.
      if (job->workers.fetch_sub(1) == 1 && waiting_callers_.load() > 0) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        done_.notify_all();
      }
    }
  }

  // Waits for a job that has an open place, and joins it.
  Job *join() {
    spin([this] { return openings_.load(std::memory_order_relaxed) > 0; });
    std::unique_lock<std::mutex> lock(mutex_);
    while (first_ == nullptr) {
      ++asleep_;
      work_.wait(lock);
      --asleep_;
    }
    Job *job = first_;
    job->workers.fetch_add(1);
    openings_.fetch_sub(1, std::memory_order_relaxed);
    if (--job->open_places == 0) first_ = job->next_job;
    return job;
  }

  // Appends a job to the list and wakes workers.
  void publish(Job *job) {
    int wake;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Job **end = &first_;
      while (*end != nullptr) end = &(*end)->next_job;
      *end = job;
      openings_.fetch_add(job->open_places, std::memory_order_relaxed);
      wake = std::min(job->open_places, asleep_);
    }
    for (; wake > 0; --wake) work_.notify_one();
  }

  // Removes a job from the list and waits until no worker uses it.
  void finish(Job *job) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Job **link = &first_;
      while (*link != nullptr && *link != job) link = &(*link)->next_job;
      if (*link == job) {
        *link = job->next_job;
        openings_.fetch_sub(job->open_places, std::memory_order_relaxed);
      }
    }
    const auto is_done = [job] { return job->workers.load() == 0; };
    if (spin(is_done)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    waiting_callers_.fetch_add(1);
    while (!is_done()) done_.wait(lock);
    waiting_callers_.fetch_sub(1);
  }

  std::mutex mutex_;
  std::condition_variable work_;      // a job was added
  std::condition_variable done_;      // the last worker of a job has finished
  Job *first_ = nullptr;              // list of the jobs that have open places, oldest first; guarded by the mutex
  int asleep_ = 0;                    // workers that sleep; guarded by the mutex
  std::atomic<int> openings_{0};      // open places of all jobs, for workers that spin
  std::atomic<int> waiting_callers_{0};  // callers that sleep until the workers of their job have finished
  std::atomic<int> size_{0};
};

// The pool is never destroyed, because its workers may wait in it while the process ends.
std::atomic<Pool *> current_pool{nullptr};

// A forked child needs a new pool: it has no workers, and another thread of the parent may have locked the mutex.
void create_pool() { current_pool.store(new Pool); }

Pool &pool() {
  static const bool is_initialized = [] {
    create_pool();
    pthread_atfork(nullptr, nullptr, create_pool);
    return true;
  }();
  (void)is_initialized;
  return *current_pool.load();
}

}  // namespace

void parallel(int threads, int64_t items, int64_t grain, xrt_body body, void *argument) {
  if (items <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t grains = (items - 1) / grain + 1;
  threads = static_cast<int>(std::min<int64_t>(std::min(threads, kMaxWorkers + 1), grains));
  if (threads <= 1 || is_in_body) {
    body(argument, 0, items);
    return;
  }
  const int64_t ranges = static_cast<int64_t>(threads) * kRangesPerThread;
  const int64_t range = std::max<int64_t>((grains + ranges - 1) / ranges, 1) * grain;
  pool().grow(threads - 1);
  Job job{body, argument, items, range, threads - 1};
  pool().run(&job);
}

int workers() { return pool().size(); }

}  // namespace xrt
