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

constexpr int kMostWorkers = 255;
constexpr int kPartsPerThread = 4;  // so that a thread that was held up does not hold up the others
// Waking a sleeper takes tens of microseconds; the steps of a tape follow each other more quickly. This bounds what is lost
// to others when none follows.
constexpr std::chrono::microseconds kSpin(20);

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits a little for a condition, without sleeping. Returns whether it holds.
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

// Whether this thread is in a body: it must not wait for others there, who may wait for it.
thread_local bool inside = false;

// One call of `parallel`. It lives on its caller's stack, and is gone when no worker is at it and the caller has found that out.
struct Job {
  xrt_body body;
  void *argument;
  int64_t items;
  int64_t part;                 // items that are taken at once
  int wanted;                   // workers that may still come; guarded by the pool's mutex
  Job *following = nullptr;     // in the list of open jobs; guarded likewise
  std::atomic<int64_t> next{0};  // the first item that nobody has taken
  std::atomic<int> helpers{0};   // workers that are at it

  void work() {
    inside = true;
    for (int64_t begin; (begin = next.fetch_add(part, std::memory_order_relaxed)) < items;) {
      body(argument, begin, std::min(begin + part, items));
    }
    inside = false;
  }
};

class Pool {
 public:
  void run(Job *job) {
    open(job);
    job->work();
    close(job);
  }

  void grow(int count) {
    if (size_.load(std::memory_order_relaxed) >= count) return;
    std::lock_guard<std::mutex> lock(mutex_);
    while (size_.load(std::memory_order_relaxed) < count && start()) size_.fetch_add(1, std::memory_order_relaxed);
  }

  int size() const { return size_.load(std::memory_order_relaxed); }

 private:
  // A worker takes no signal: those of the process are for the interpreter's main thread.
  bool start() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = true;
    try {
      std::thread([this] { live(); }).detach();
    } catch (const std::system_error &) {
      started = false;  // the system gives no more threads: those that are there do the work
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  void live() {
    for (;;) {
      Job *job = join();
      job->work();
      // From here on the job may be gone as soon as the count is down.
      if (job->helpers.fetch_sub(1) == 1 && waiting_.load() > 0) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        done_.notify_all();
      }
    }
  }

  Job *join() {
    spin([this] { return openings_.load(std::memory_order_relaxed) > 0; });
    std::unique_lock<std::mutex> lock(mutex_);
    while (first_ == nullptr) {
      ++asleep_;
      work_.wait(lock);
      --asleep_;
    }
    Job *job = first_;
    job->helpers.fetch_add(1);
    openings_.fetch_sub(1, std::memory_order_relaxed);
    if (--job->wanted == 0) first_ = job->following;
    return job;
  }

  void open(Job *job) {
    int wake;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Job **end = &first_;
      while (*end != nullptr) end = &(*end)->following;
      *end = job;
      openings_.fetch_add(job->wanted, std::memory_order_relaxed);
      wake = std::min(job->wanted, asleep_);
    }
    for (; wake > 0; --wake) work_.notify_one();
  }

  void close(Job *job) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Job **place = &first_;
      while (*place != nullptr && *place != job) place = &(*place)->following;
      if (*place == job) {
        *place = job->following;
        openings_.fetch_sub(job->wanted, std::memory_order_relaxed);
      }
    }
    const auto left = [job] { return job->helpers.load() == 0; };
    if (spin(left)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    waiting_.fetch_add(1);
    while (!left()) done_.wait(lock);
    waiting_.fetch_sub(1);
  }

  std::mutex mutex_;
  std::condition_variable work_;  // a job was opened
  std::condition_variable done_;  // the last worker has left some job
  Job *first_ = nullptr;          // open jobs that want workers, oldest first; guarded by the mutex
  int asleep_ = 0;                // guarded likewise
  std::atomic<int> openings_{0};  // how many workers are wanted, of all open jobs; for spinning
  std::atomic<int> waiting_{0};   // callers that sleep until the last worker has left
  std::atomic<int> size_{0};
};

// The pool is never destroyed: its workers may sleep in it while the process ends.
std::atomic<Pool *> the_pool{nullptr};

// A child that was forked has no workers, and its copy of the mutex may be locked by a thread that it does not have.
void start_anew() { the_pool.store(new Pool); }

Pool &pool() {
  static const bool made = [] {
    start_anew();
    pthread_atfork(nullptr, nullptr, start_anew);
    return true;
  }();
  (void)made;
  return *the_pool.load();
}

}  // namespace

void parallel(int threads, int64_t items, int64_t grain, xrt_body body, void *argument) {
  if (items <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t grains = (items - 1) / grain + 1;
  threads = static_cast<int>(std::min<int64_t>(std::min(threads, kMostWorkers + 1), grains));
  if (threads <= 1 || inside) {
    body(argument, 0, items);
    return;
  }
  const int64_t parts = static_cast<int64_t>(threads) * kPartsPerThread;
  const int64_t part = std::max<int64_t>((grains + parts - 1) / parts, 1) * grain;
  Pool &all = pool();
  all.grow(threads - 1);
  Job job{body, argument, items, part, threads - 1};
  all.run(&job);
}

int workers() { return pool().size(); }

}  // namespace xrt
