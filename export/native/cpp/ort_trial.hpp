// Trying entries of onnxruntime's table before they are used.
//
// The table carries no names, and a wrong entry called with another's arguments mostly ends the
// process. So each is called first in a child process, with arguments whose answer is known: a
// list that does not fit the table is refused with the entry's name, and nothing is damaged.
// Entries that only release or register something have no answer; of them a crash alone shows.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <vector>

#include "ort_abi.hpp"

namespace sterna::ort {

// An entry is not what the list says.
class WrongEntry : public std::runtime_error {
public:
    explicit WrongEntry(Entry entry);
    const Entry entry;
};

// The child's side of a trial. A wrong answer ends the child.
class Trial {
public:
    Trial(const Api* api, int report, std::optional<Entry> blamed)
        : api_(api), report_(report), blamed_(blamed) {}

    template <class Result, class... Arguments>
    Result call(Entry entry, Arguments... arguments) const {
        begin(entry);
        return ort::call<Result>(api_, entry, arguments...);
    }

    // Calls an entry that returns a status; true for none. A status must carry a message.
    template <class... Arguments>
    bool succeeds(Entry entry, Arguments... arguments) const {
        Status* const status = call<Status*>(entry, arguments...);
        if (status) {
            expect(is_text(ort::call<const char*>(api_, Entry::GetErrorMessage,
                                                  static_cast<const Status*>(status))));
        }
        return !status;
    }

    void expect(bool right) const;
    void expect_tensor(const Value* value, int type, const std::vector<int64_t>& shape) const;
    // Whether these are characters that a person reads.
    static bool is_text(const char* text);

private:
    void begin(Entry entry) const;

    const Api* const api_;
    const int report_;
    const std::optional<Entry> blamed_;
};

// Runs `check` in a child process. Throws WrongEntry if the child ends before `check` does, with
// the entry called last; `blamed` if it is the only one of `check` that has not been tried.
// Where there is no child process to be had, or it takes longer than ten seconds (another thread
// held a lock when it began), nothing is known and nothing is thrown.
void try_entries(const Api* api, const std::function<void(const Trial&)>& check,
                 std::optional<Entry> blamed = std::nullopt);

// Tries what needs no node: statuses, tensors and domains. `op` and `options` stay as they are.
void try_table(const Api* api, SessionOptions* options, const CustomOp* op);

}  // namespace sterna::ort
