// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/process_group/collective_record.h"

/// Private to runtime/process_group.
namespace vitrine::process_group {

/// Knows how far every process of a process group has come, and decides who is to blame when they do not go on: pure bookkeeping, told of what
/// happens by whoever carries the messages. Times are nanoseconds on any steady clock.
class FailureDetector {
 public:
  explicit FailureDetector(int size);

  /// A process is there, and is called `name` from now on ("rank 2 (pid 77 on node1)").
  void join(int rank, std::string name, int64_t now_ns);
  /// It went again before all had come.
  void leave(int rank);
  bool complete() const { return joined_ == size(); }
  /// "ranks 2, 3" that have not joined.
  std::string missing() const;
  /// A process gave a sign of life.
  void hear(int rank, int64_t now_ns);
  void set_devices(int rank, std::vector<std::string> names);
  /// A device began these collectives, in order, and has finished `finished` in all. Records are compared with those of the others.
  void progress(int rank, int device, uint64_t finished, std::span<const CollectiveRecord> begun);
  /// A process has waited too long. Judged a little later, when all who live have been heard, unless it waits no more by then.
  void overdue(int rank, std::string what, int64_t waited_ms, int64_t now_ns);
  void not_overdue(int rank);
  /// A process takes part in gathering number `sequence`. Returns all parts in rank order once all have come.
  std::optional<std::vector<std::string>> gather(int rank, uint64_t sequence, std::string what, std::string part);
  /// Once all processes have come to their end: whether they began the same number of collectives.
  void compare_counts();
  void fail(int rank, const std::string& reason);
  /// A process ends as it should, or is gone: without a word unless it said so. Judged a little later, when the others have told how far they came.
  void bye(int rank);
  void lost(int rank, int64_t now_ns);
  bool all_said_bye() const;
  /// Rank 0, whose detector this is, did nothing for so long: it was stopped. Whoever is gone thereafter went because of that.
  void was_stopped(int64_t pause_ns, int64_t now_ns);
  void tick(int64_t now_ns);

  /// Why the process group has failed: the first cause found. Empty while it has not.
  const std::string& verdict() const { return verdict_; }
  /// Where a process stands: "last began collective 17 (...), finished 17".
  std::string position(int rank) const;
  int size() const { return static_cast<int>(members_.size()); }

  /// How long nothing is heard of a process that lives.
  static constexpr int64_t kSilentNs = 1'500'000'000;
  static constexpr int64_t kJudgeAfterNs = 1'000'000'000;
  static constexpr int64_t kDeathAfterNs = 150'000'000;

 private:
  struct DeviceState {
    std::string name;
    uint64_t begun = 0, finished = 0;
    std::optional<CollectiveRecord> last;
  };
  struct Overdue {
    std::string what;
    int64_t waited_ms, reported_ns;
  };
  struct Member {
    std::string name;
    bool joined = false, said_bye = false, gone = false;
    bool ended() const { return said_bye || gone; }
    int64_t heard_ns = 0;
    std::vector<DeviceState> devices;
    uint64_t gatherings = 0;
    std::string gathering;  // what the last one is for
    std::optional<Overdue> overdue;
  };
  /// What the devices began as one collective, until all have: one part for each signature, so that a record costs no more among many ranks.
  using Place = std::pair<int, int>;  // rank, device
  struct Part {
    CollectiveRecord record;
    std::vector<Place> places;  // that began it, as they came
  };
  struct Round {
    int64_t begun = 0;
    std::vector<Part> parts;
  };
  struct Gathering {
    int first_rank = 0;  // of those who came
    std::string what;
    std::vector<std::optional<std::string>> parts;
    int present = 0;
  };
  Member& member(int rank) { return members_[static_cast<size_t>(rank)]; }
  const Member& member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  void compare(Round round);
  void judge(const Member& waits, int64_t now_ns);
  /// "others have come to collective 17 (...)", where some have come further than this process; else empty.
  std::string others_position(int rank) const;
  void decide(std::string verdict);
  /// "rank 2 (pid 77 on node1)", with the device where it has several.
  std::string who(int rank, int device) const;
  /// The ranks of these places, which ascend.
  static std::string ranks_text(const std::vector<Place>& places);

  std::vector<Member> members_;
  int joined_ = 0, ended_ = 0, overdue_ = 0;  // how many of them
  int64_t device_count_ = 0;
  std::map<std::pair<int, uint64_t>, Round> rounds_;  // by group and sequence
  std::map<uint64_t, Gathering> gatherings_;
  std::optional<std::pair<int64_t, int64_t>> pause_;  // how long, until when
  std::optional<std::pair<int, int64_t>> dead_;       // rank, when it was noticed
  std::string verdict_;
};

}  // namespace vitrine::process_group
