// Trying entries of onnxruntime's table in a child process.
#include "ort_trial.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sterna::ort {
namespace {

constexpr unsigned kSeconds = 10;
// What the child writes besides positions of entries.
constexpr uint16_t kRight = 0xffff, kLate = 0xfffe;

int g_report = -1;      // of the child, for its signal handler

void report(int to, uint16_t word) {
    // Nobody reads on if it fails, and the parent takes that for a child that has died.
    const ssize_t written = write(to, &word, sizeof word);
    static_cast<void>(written);
}

void end_late(int) {
    report(g_report, kLate);
    _exit(0);
}

// A crash is an answer here: no message of another handler, and no core file.
void keep_quiet(int to) {
    for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) {
        std::signal(number, SIG_DFL);
    }
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    const int nothing = open("/dev/null", O_WRONLY);
    if (nothing >= 0) {
        dup2(nothing, STDOUT_FILENO);
        dup2(nothing, STDERR_FILENO);
    }
    g_report = to;
    std::signal(SIGALRM, end_late);
    sigset_t late;
    sigemptyset(&late);
    sigaddset(&late, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &late, nullptr);
    alarm(kSeconds);
}

// The next word of the child; false when it has ended or says nothing.
bool next(int from, uint16_t& word, bool& silent) {
    pollfd waiting = {from, POLLIN, 0};
    int ready;
    do {
        ready = poll(&waiting, 1, 2000 * static_cast<int>(kSeconds));
    } while (ready < 0 && errno == EINTR);
    silent = ready <= 0;
    return !silent && read(from, &word, sizeof word) == sizeof word;
}

}  // namespace

WrongEntry::WrongEntry(Entry wrong)
    : std::runtime_error(
          "entry " + std::to_string(static_cast<int>(wrong)) + " of onnxruntime's C interface is "
          "not " + name_of(wrong) + ", as ort_entries.hpp has it"),
      entry(wrong) {}

void Trial::begin(Entry entry) const {
    report(report_, static_cast<uint16_t>(blamed_.value_or(entry)));
}

void Trial::expect(bool right) const {
    if (!right) _exit(1);
}

bool Trial::is_text(const char* text) {
    constexpr size_t kMost = 65536;
    if (!text || !*text) return false;
    for (size_t i = 0; i < kMost && text[i]; ++i) {
        const unsigned char c = static_cast<unsigned char>(text[i]);
        if (c < ' ' && c != '\n' && c != '\t' && c != '\r') return false;
    }
    return true;
}

void Trial::expect_tensor(
    const Value* value, int type, const std::vector<int64_t>& shape) const {
    TensorInfo* info = nullptr;
    expect(value && succeeds(Entry::GetTensorTypeAndShape, value, &info) && info);
    const TensorInfo* const told = info;
    size_t rank = ~size_t{0};
    expect(succeeds(Entry::GetDimensionsCount, told, &rank) && rank == shape.size());
    std::vector<int64_t> sizes(shape.size(), -2);
    expect(succeeds(Entry::GetDimensions, told, sizes.data(), rank) && sizes == shape);
    int element = -1;
    expect(succeeds(Entry::GetTensorElementType, told, &element) && element == type);
    call<void>(Entry::ReleaseTensorTypeAndShapeInfo, info);
}

void try_entries(const Api* api, const std::function<void(const Trial&)>& check,
                 std::optional<Entry> blamed) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    const pid_t child = fork();
    if (child == 0) {
        keep_quiet(ends[1]);
        check(Trial(api, ends[1], blamed));
        report(ends[1], kRight);
        _exit(0);
    }
    close(ends[1]);
    uint16_t word = kLate, last = kLate;
    bool silent = child < 0;
    while (!silent && next(ends[0], word, silent)) last = word;
    close(ends[0]);
    if (child > 0) {
        if (silent) kill(child, SIGKILL);
        while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {}
    }
    if (!silent && last != kRight && last != kLate) throw WrongEntry(static_cast<Entry>(last));
}

void try_table(const Api* api, SessionOptions* options, const CustomOp* op) {
    try_entries(api, [=](const Trial& trial) {
        constexpr char kText[] = "a message";
        Status* const status = trial.call<Status*>(Entry::CreateStatus, kFail, kText);
        trial.expect(status);
        const char* const text = trial.call<const char*>(
            Entry::GetErrorMessage, static_cast<const Status*>(status));
        trial.expect(text && std::strcmp(text, kText) == 0);
        trial.call<void>(Entry::ReleaseStatus, status);
        // The last of the list: whatever its position, the list is as long as the table.
        trial.expect(Trial::is_text(trial.call<const char*>(Entry::GetBuildInfoString)));

        MemoryInfo* memory = nullptr;       // of the device's allocator, default memory
        trial.expect(trial.succeeds(Entry::CreateCpuMemoryInfo, 0, 0, &memory) && memory);
        double numbers[6] = {};
        const std::vector<int64_t> shape = {1, 2, 3};
        Value* value = nullptr;
        trial.expect(trial.succeeds(
            Entry::CreateTensorWithDataAsOrtValue, static_cast<const MemoryInfo*>(memory),
            static_cast<void*>(numbers), sizeof numbers, shape.data(), shape.size(), kDouble,
            &value));
        trial.expect_tensor(value, kDouble, shape);
        void* data = nullptr;
        trial.expect(trial.succeeds(Entry::GetTensorMutableData, value, &data)
                     && data == numbers);
        trial.call<void>(Entry::ReleaseValue, value);
        trial.call<void>(Entry::ReleaseMemoryInfo, memory);

        CustomOpDomain* domain = nullptr;
        trial.expect(trial.succeeds(Entry::CreateCustomOpDomain, "sterna.trial", &domain)
                     && domain);
        trial.expect(trial.succeeds(Entry::CustomOpDomain_Add, domain, op));
        trial.expect(trial.succeeds(Entry::AddCustomOpDomain, options, domain));
    });
}

}  // namespace sterna::ort
