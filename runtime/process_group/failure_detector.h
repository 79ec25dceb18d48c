// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/process_group/message.h"
#include "runtime/reason.h"

/// Private to runtime/process_group.
namespace vitrine::process_group {

/// The same words whichever of two processes finds it.
std::string no_messages(const std::string& one, const std::string& other, int64_t silent_ms);

/// Tracks the progress of every process of a process group and names the culprit if they stop progressing. Pure
/// bookkeeping: the code that carries the messages reports all events. Times are nanoseconds on any steady clock.
class FailureDetector {
 public:
  explicit FailureDetector(int size);

  /// A process has joined; messages call it `name` ("rank 2 (pid 77 on node1)").
  void join(int rank, std::string name, int64_t now_ns);
  /// A process left before all had joined.
  void leave(int rank);
  bool complete() const { return joined_ == size(); }
  /// Lists the ranks that have not joined: "ranks 2, 3".
  std::string missing() const;
  /// A process has sent a sign of life.
  void hear(int rank, int64_t now_ns);
  /// What it has done so far.
  void set_activity(int rank, const Activity& activity);
  void set_devices(int rank, std::vector<std::string> names);
  /// A device began these collectives, in order, and has finished `finished` in total. Compares the records with those
  /// of other devices.
  void progress(int rank, int device, uint64_t finished, std::span<const CollectiveRecord> begun);
  /// A process has waited too long. It is judged a little later, after all live processes have reported, unless its
  /// wait is over by then. A rank that others wait for may take kPatience times as long before the first step is done,
  /// or if its processor time has advanced within the last half of the deadline, or if it is silent because it waits
  /// for a processor; so may a collective whose data has moved in it: a process that gets little processor time does so
  /// now and then.
  void overdue(int rank, Overdue wait, int64_t now_ns);
  void not_overdue(int rank);
  /// A process takes part in gathering number `sequence`. Returns all parts in rank order once the last one has
  /// arrived.
  std::optional<std::vector<std::string>> gather(int rank, uint64_t sequence, std::string what, std::string part);
  /// Checks, after all processes have reached their end, that they began the same number of collectives.
  void compare_counts();
  void fail(int rank, const Reason& reason);
  /// A process ends regularly, or its connection is lost, which is an error without a preceding bye. Judged a little
  /// later, after the others reported.
  void bye(int rank);
  void lost(int rank, int64_t now_ns);
  bool all_said_bye() const;
  /// Rank 0, which owns this detector, did nothing for so long because it was stopped. Connections lost after that are
  /// a consequence.
  void was_stopped(int64_t pause_ns, int64_t now_ns);
  /// What is known of a rank that is silent: its machine does not acknowledge what it is sent, it waits for a processor
  /// of this machine, or neither.
  enum class Silence { kUnreachable, kStarved, kHanging };
  using SilenceOf = std::function<Silence(int rank)>;
  void tick(int64_t now_ns, const SilenceOf& silence_of);

  /// Why the process group has failed: the first cause found. Empty if it has not failed.
  const Reason& verdict() const { return verdict_; }
  /// Why the processes wait longer than the deadline, once; otherwise empty.
  Reason take_notice() { return std::exchange(notice_, {}); }
  /// Progress of a process: "last began collective 17 (...), finished 17".
  std::string position(int rank) const;
  const std::string& name(int rank) const { return member(rank).name; }
  int size() const { return static_cast<int>(members_.size()); }

  /// Silence after which a process counts as hanging.
  static constexpr int64_t kSilentNs = 1'500'000'000;
  static constexpr int64_t kJudgeAfterNs = 1'000'000'000;
  static constexpr int64_t kDeathAfterNs = 150'000'000;
  static constexpr int kPatience = 5;
  static constexpr int kPatienceWhileStarved = 25;
  /// Processor time during a judgement, or within kWorkWithinNs, that shows work: more than threads take that only
  /// watch.
  static constexpr int64_t kWorkNs = 5'000'000, kWorkWithinNs = 4'000'000'000;

 private:
  static constexpr int64_t kNeverNs = int64_t{1} << 60;
  struct DeviceState {
    std::string name;
    uint64_t begun = 0, finished = 0;
    std::optional<CollectiveRecord> last;
  };
  struct LongWait {
    Overdue report;
    int64_t reported_ns = 0, next_ns = 0;  // when it is next watched, and then judged
    int judged = 0;
  };
  struct Member {
    std::string name;
    bool joined = false, said_bye = false, gone = false;
    bool ended() const { return said_bye || gone; }
    // When it was last heard, last reported moved data, and last reported work.
    int64_t heard_ns = 0, moved_ns = -kNeverNs, worked_ns = -kNeverNs;
    std::vector<DeviceState> devices;
    uint64_t gatherings = 0;
    std::string gathering;  // purpose of the latest one
    std::optional<LongWait> overdue;
    Activity activity, watched, at_overdue;      // now, when the judgement began, and when the first wait grew too long
    std::pair<int64_t, int64_t> work_mark = {};  // time and processor time from which work is counted
    bool works(int64_t since_ns) const {
      return activity.processor_ns - watched.processor_ns >= kWorkNs || worked_ns > since_ns;
    }
    bool moves(int64_t since_ns) const { return activity.transfers > watched.transfers || moved_ns > since_ns; }
  };
  /// Records of one collective by the devices that began it, until all have: one part for each signature, so that a
  /// record costs no more with many ranks.
  using Place = std::pair<int, int>;  // rank, device
  struct Part {
    CollectiveRecord record;
    std::vector<Place> places;  // that began it, in order of arrival
  };
  struct Round {
    int64_t begun = 0;
    std::vector<Part> parts;
  };
  struct Gathering {
    int first_rank = 0;  // of those that arrived
    std::string what;
    std::vector<std::optional<std::string>> parts;
    int present = 0;
  };
  Member& member(int rank) { return members_[static_cast<size_t>(rank)]; }
  const Member& member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  void compare(Round round);
  void judge(Member& waits, int64_t now_ns, const SilenceOf& silence_of);
  bool judge_silence(Member& waits, const std::string& waiting, int64_t now_ns, const SilenceOf& silence_of);
  /// Judges a rank that others wait for; `late` says what for.
  void judge_late(int rank, const std::string& name, const std::string& late, Member& waits,
                  const std::string& waiting);
  static Reason slow(const std::string& name, const char* sign = "its processor time advances");
  /// Waits once more, unless there have been kPatience judgements, or kPatienceWhileStarved while a rank waits for a
  /// processor or `works` (null: none) has had less processor time than a deadline.
  bool extend(Member& waits, const Member* works, const Reason& notice, bool waits_for_processor = false);
  /// "; others have reached collective 17 (...)" if some are further than this process; otherwise empty.
  std::string others_position(int rank) const;
  void decide(Reason verdict);
  /// "rank 2 (pid 77 on node1)", with the device if the process has several.
  std::string device_name(int rank, int device) const;
  /// Describes the ranks of these places. requires ascending ranks
  static std::string ranks_text(const std::vector<Place>& places);

  std::vector<Member> members_;
  int joined_ = 0, ended_ = 0, overdue_ = 0;  // numbers of such processes
  int64_t device_count_ = 0;
  std::map<std::pair<int, uint64_t>, Round> rounds_;  // by group and sequence
  std::map<uint64_t, Gathering> gatherings_;
  std::optional<std::pair<int64_t, int64_t>> pause_;  // duration and end
  std::optional<std::pair<int, int64_t>> dead_;       // rank, and when it was detected
  int64_t watched_ns_ = 0;                            // when the judgement began
  int64_t recent_since_ns_ = 0;                       // half a deadline before the judgement
  Reason verdict_, notice_;
};

}  // namespace vitrine::process_group
