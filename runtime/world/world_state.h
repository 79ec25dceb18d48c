// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/error.h"
#include "runtime/world/connection.h"
#include "runtime/world/door.h"
#include "runtime/world/meeting.h"
#include "runtime/world/message.h"
#include "runtime/world/mpi_session.h"
#include "runtime/world/referee.h"
#include "runtime/world/world.h"

/// Private to runtime/world.
namespace vitrine {

namespace world {
inline constexpr int64_t kMs = 1'000'000;  // in nanoseconds
inline constexpr const char* kEndOfRun = "the end of the run";

/// "rank 2 (pid 77 on node1)": this process.
std::string process_name(int rank);
}  // namespace world

/// What a world is made of: rank 0 is its hub, which keeps a connection to each other process, its members, and the referee.
struct World::State {
  explicit State(const WorldOptions& o) : options(o), rank(o.rank), size(o.size), referee(o.size) {}

  // Meeting: world_meeting.cpp on rank 0, world_joining.cpp elsewhere.
  void meet();
  void wait_for_members();
  /// Where rank 0 listens, and the key by which it knows the others.
  world::Door open_door(world::Address& address);
  /// A process is taken in, or told why not.
  void take_in(world::Door::Guest guest, world::Door& door);
  /// Forgets processes that went again before all had come.
  void forget_those_who_left();
  void find_hub();
  bool try_hub(const world::Address& address, std::string& problem);
  /// Proves to the hub that this process knows the run's key, and has it do the same. False when that is not rank 0 of this run.
  bool shake_hands(world::Connection& connection, const world::Address& address, const std::string& where, std::string& problem) const;
  /// Waits for the hub's answers until all processes have come.
  bool wait_for_welcome(world::Connection& connection, const std::string& where, std::string& problem);
  /// The next message, for as long as the other side stays; where none comes, `problem` says so of `where`.
  std::optional<world::Message> wait_for_answer(world::Connection& connection, int64_t patience_ms, const std::string& where,
                                                std::string& problem) const;
  int64_t meeting_ms() const { return options.timeout_ms * kFirstStepFactor; }

  // The world's own thread: world_watch.cpp.
  void watch();
  void listen_to_all();
  void wait_for_something();
  /// Has wait_for_something() notice what comes from a connection, and once it takes more, where it has unsent bytes.
  void listen_to(int who);
  void send_to(int who, const std::string& bytes);
  std::optional<world::Connection>& connection_to(int who) { return is_hub() ? members[static_cast<size_t>(who)] : hub; }
  void tell_local(int64_t now_ns);
  void tell_progress();
  void check_waits(int64_t now_ns);
  void serve_member(int who, int64_t now_ns);
  void serve_hub(int64_t now_ns);
  void handle_from_member(int from, const std::string& bytes, int64_t now_ns);
  void handle_from_hub(const std::string& bytes);
  void send_to_hub(const std::string& bytes);
  void send_to_members(const std::string& bytes);
  /// Rank 0's answer to the gathering under way, for this process.
  void take_answer(std::string answer);
  void send_answers(const std::vector<std::string>& answers);
  void declare(const std::string& verdict, bool found_here = true);
  /// Ends the process when that has not been stopped within options.exit_after_ms.
  void exit_in_time();
  /// "; rank 2 has come to collective 17 (...)", or empty.
  std::string own_position() const;
  bool has_unsent() const;
  bool done(int64_t now_ns);

  void wake();
  /// Stops the world's threads and waits for their end.
  void stop();
  bool is_hub() const { return rank == 0; }
  void throw_if_failed_locked() const {
    if (!failure.empty()) throw CommError(failure);
  }
  static constexpr int kFirstStepFactor = 5;
  static constexpr int64_t kByeTimeoutNs = 10'000 * world::kMs;
  int64_t timeout_ns() const { return options.timeout_ms * world::kMs * (warm ? 1 : kFirstStepFactor); }

  struct Slot {
    std::string name;
    uint64_t finished = 0, told_finished = 0;
    std::optional<CollectiveRecord> last;
    std::vector<CollectiveRecord> fresh;  // begun, and not yet told
  };
  struct Wait {
    std::string what;
    int64_t since_ns = 0;
  };
  struct Gathering {
    uint64_t sequence;
    std::string what, part;
  };

  WorldOptions options;
  int rank, size, local_rank = 0, local_size = 1;
  std::string met_text, machine;
  int host_count = 1;
  std::unique_ptr<world::MpiSession> mpi;
  world::Descriptor wake_up = world::make_event();
  std::thread thread, exit_thread;

  // Under the mutex: what other threads hand to the world's thread and get from it.
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::string failure;
  bool warm = false, closing = false, stopping = false, closed = false;
  std::vector<Slot> slots;
  bool slots_told = true;
  std::map<uint64_t, Wait> waits;
  uint64_t next_id = 1, next_gathering = 0;
  int next_group = 0;
  std::optional<Gathering> to_gather;
  std::optional<std::vector<std::string>> gathered;   // of the hub: all parts
  std::optional<std::vector<std::string>> to_answer;  // of the hub: for all, or for each rank
  std::optional<std::string> answered;
  std::string error_to_tell;
  std::recursive_mutex handler_mutex;  // held while handlers are called, which may call on
  bool announced = false;
  bool all_told = false;  // of the failure: the other processes, and the handlers; under `mutex`
  std::map<uint64_t, std::function<void(const std::string&)>> handlers;

  // Of the world's thread.
  world::Referee referee;
  std::vector<std::optional<world::Connection>> members;  // of the hub, by rank
  std::optional<world::Connection> hub;                   // of the others
  world::Rendezvous rendezvous;                           // as the options say
  std::string last_refusal;                               // of the hub, of a process that knows the key
  std::string hub_name, hub_position = "nothing is known of its collectives";
  int64_t hub_heard_ns = 0, last_beat_ns = 0, failed_ns = 0, bye_ns = 0;
  world::Descriptor poll_set;              // of the connections, by the rank at their other end
  std::vector<int> ready;                  // ranks from whom something has come, or who take more
  std::vector<char> listened, wants_more;  // by rank: it is in the set; it is watched for taking more
  int64_t watched_ns = 0;                  // when the thread last looked
  uint64_t complaint = 0;                  // the wait that the hub was told of
  bool said_bye = false, hub_said_bye = false;
};

}  // namespace vitrine
