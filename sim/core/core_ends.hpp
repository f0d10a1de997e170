// What a core has at its streams: requests at those of a sequence, weights at those of a memory.
#pragma once

#include <deque>

#include "stream_ends.hpp"

namespace {

struct Request {
    uint64_t limit, stop, stop_token, beta, seed;
    std::vector<uint64_t> words;
};

/// A sequence: its requests, one after the other.
class Sequence {
  public:
    Port limit, stop, stop_token, beta, seed;
    Driver prompts;
    Sink tokens, logits;
    bool has_logits = false;
    std::vector<Request> requests;
    std::vector<uint64_t> taken_at;

    void begin() {
        requests.clear();
        taken_at.clear();
        prompts.begin();
        tokens.begin();
        logits.begin();
        current_ = position_ = 0;
    }
    bool done() const { return current_ == requests.size(); }
    void drive(uint64_t cycle) {
        tokens.drive(cycle);
        if (has_logits) logits.drive(cycle);
        // `ready` depends on registers and `go` only: it is known before the inputs are set.
        // It says that the sequence is idle, and only then may the control change.
        bool waits = !done();
        if (waits && position_ == 0) waits = prompts.ends.ready.high();
        if (waits) waits = prompts.wants(cycle);
        if (waits) {
            const Request& request = requests[current_];
            if (position_ == 0) {
                limit.set(request.limit);
                stop.set(request.stop);
                stop_token.set(request.stop_token);
                beta.set(request.beta);
                seed.set(request.seed);
            }
            prompts.ends.payload.set(request.words[position_]);
        }
        prompts.offer(waits);
    }
    bool sample(uint64_t cycle) {
        bool moved = tokens.sample(cycle);
        if (has_logits && logits.sample(cycle)) moved = true;
        if (prompts.sample()) {
            moved = true;
            taken_at.push_back(cycle);
            if (++position_ == requests[current_].words.size()) {
                ++current_;
                position_ = 0;
            }
        }
        return moved;
    }
    bool held(uint64_t cycle) const {
        return prompts.pauses.held(cycle) || tokens.pauses.held(cycle)
               || logits.pauses.held(cycle);
    }
    std::string counts() const {
        size_t words = 0;
        for (const Request& request : requests) words += request.words.size();
        return std::to_string(taken_at.size()) + " of " + std::to_string(words)
               + " prompt tokens taken, " + std::to_string(tokens.taken_at.size())
               + " tokens and " + std::to_string(logits.taken_at.size())
               + " words of logits out";
    }

  private:
    size_t current_ = 0, position_ = 0;
};

/// Answers requests for runs of weight words from an array, in order.
class WeightSource {
  public:
    Sink requests;
    Driver weights;
    unsigned first_bits = 0;
    Bytes words;

    void begin() {
        requests.begin();
        weights.begin();
        runs_.clear();
    }
    bool idle() const { return runs_.empty(); }
    void drive(uint64_t cycle) {
        requests.drive(cycle);
        const bool offers = !idle() && weights.wants(cycle);
        const size_t size = weights.ends.payload.size;
        if (offers)
            std::memcpy(weights.ends.payload.data, &words[runs_.front().next * size], size);
        weights.offer(offers);
    }
    bool sample(uint64_t cycle) {
        bool moved = false;
        if (weights.sample()) {
            moved = true;
            if (++runs_.front().next == runs_.front().end) runs_.pop_front();
        }
        if (requests.sample(cycle)) {
            moved = true;
            const uint64_t request = requests.ends.payload.get();
            const uint64_t first = request & ((uint64_t(1) << first_bits) - 1);
            const uint64_t count = request >> first_bits;
            const size_t all = words.size() / weights.ends.payload.size;
            if (count == 0 || first + count > all)
                throw std::runtime_error(
                    "weight words " + std::to_string(first) + " to "
                    + std::to_string(first + count) + " were asked for; there are "
                    + std::to_string(all));
            runs_.push_back({first, first + count});
        }
        return moved;
    }
    bool held(uint64_t cycle) const {
        return weights.pauses.held(cycle) || requests.pauses.held(cycle);
    }

  private:
    struct Run {
        uint64_t next, end;
    };
    std::deque<Run> runs_;
};

}  // namespace
