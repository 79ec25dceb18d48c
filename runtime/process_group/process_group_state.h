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
#include "runtime/process_group/acceptor.h"
#include "runtime/process_group/connection.h"
#include "runtime/process_group/failure_detector.h"
#include "runtime/process_group/message.h"
#include "runtime/process_group/mpi_session.h"
#include "runtime/process_group/process_group.h"
#include "runtime/process_group/rendezvous.h"

/// Private to runtime/process_group.
namespace vitrine {

namespace process_group {
inline constexpr int64_t kMs = 1'000'000;  // in nanoseconds
inline constexpr const char* kEndOfRun = "the end of the run";

/// "rank 2 (pid 77 on node1)": this process.
std::string process_name(int rank);
}  // namespace process_group

/// What a process group is made of: rank 0 is its server, which keeps a connection to each other process, its members, and the detector.
struct ProcessGroup::State {
  explicit State(const ProcessGroupOptions& o) : options(o), rank(o.rank), size(o.size), detector(o.size) {}

  // Rendezvous: server.cpp on rank 0, joining.cpp elsewhere.
  void meet();
  void wait_for_members();
  /// Where rank 0 listens, and the key by which it knows the others.
  process_group::Acceptor open_door(process_group::Address& address);
  /// A process is taken in, or told why not.
  void take_in(process_group::Acceptor::Guest guest, process_group::Acceptor& acceptor);
  /// Forgets processes that went again before all had come.
  void forget_those_who_left();
  void find_server();
  bool try_server(const process_group::Address& address, std::string& problem);
  /// Proves to the server that this process knows the run's key, and has it do the same. False when that is not rank 0 of this run.
  bool shake_hands(process_group::Connection& connection, const process_group::Address& address, const std::string& where,
                   std::string& problem) const;
  /// Waits for the server's answers until all processes have come.
  bool wait_for_welcome(process_group::Connection& connection, const std::string& where, std::string& problem);
  /// The next message, for as long as the other side stays; where none comes, `problem` says so of `where`.
  std::optional<process_group::Message> wait_for_answer(process_group::Connection& connection, int64_t patience_ms, const std::string& where,
                                                        std::string& problem) const;
  int64_t rendezvous_ms() const { return options.timeout_ms * kFirstStepFactor; }

  // The process group's own thread: watch.cpp.
  void watch();
  void listen_to_all();
  void wait_for_something();
  /// Has wait_for_something() notice what comes from a connection, and once it takes more, where it has unsent bytes.
  void listen_to(int who);
  void send_to(int who, const std::string& bytes);
  std::optional<process_group::Connection>& connection_to(int who) { return is_server() ? members[static_cast<size_t>(who)] : server; }
  void tell_local(int64_t now_ns);
  void tell_progress();
  void check_waits(int64_t now_ns);
  void serve_member(int who, int64_t now_ns);
  void serve_members(int64_t now_ns);
  void handle_from_member(int from, const std::string& bytes, int64_t now_ns);
  void handle_from_server(const std::string& bytes);
  void send_to_server(const std::string& bytes);
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
  /// Stops the process group's threads and waits for their end.
  void stop();
  bool is_server() const { return rank == 0; }
  void throw_if_failed_locked() const {
    if (!failure.empty()) throw CommError(failure);
  }
  static constexpr int kFirstStepFactor = 5;
  static constexpr int64_t kByeTimeoutNs = 10'000 * process_group::kMs;
  int64_t timeout_ns() const { return options.timeout_ms * process_group::kMs * (warm ? 1 : kFirstStepFactor); }

  struct Slot {
    std::string name;
    uint64_t finished = 0, reported_finished = 0;
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

  ProcessGroupOptions options;
  int rank, size, local_rank = 0, local_size = 1;
  std::string met_text, machine;
  int host_count = 1;
  std::unique_ptr<process_group::MpiSession> mpi;
  process_group::Descriptor wake_up = process_group::make_event();
  std::thread thread, exit_thread;

  // Under the mutex: what other threads hand to the process group's thread and get from it.
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::string failure;
  bool warm = false, closing = false, stopping = false, closed = false;
  std::vector<Slot> slots;
  bool slots_reported = true;
  std::map<uint64_t, Wait> waits;
  uint64_t next_id = 1, next_gathering = 0;
  int next_group = 0;
  std::optional<Gathering> to_gather;
  std::optional<std::vector<std::string>> gathered;   // of the server: all parts
  std::optional<std::vector<std::string>> to_answer;  // of the server: for all, or for each rank
  std::optional<std::string> answered;
  std::string error_to_tell;
  std::recursive_mutex handler_mutex;  // held while handlers are called, which may call on
  bool announced = false;
  bool all_reported = false;  // of the failure: the other processes, and the handlers; under `mutex`
  std::map<uint64_t, std::function<void(const std::string&)>> handlers;

  // Of the process group's thread.
  process_group::FailureDetector detector;
  std::vector<std::optional<process_group::Connection>> members;  // of the server, by rank
  std::optional<process_group::Connection> server;                // of the others
  process_group::Rendezvous rendezvous;                           // as the options say
  std::string last_refusal;                                       // of the server, of a process that knows the key
  std::string server_name, server_position = "nothing is known of its collectives";
  int64_t server_heard_ns = 0, last_beat_ns = 0, failed_ns = 0, bye_ns = 0;
  process_group::Descriptor poll_set;      // of the connections, by the rank at their other end
  std::vector<int> ready;                  // ranks from whom something has come, or who take more
  std::vector<char> listened, wants_more;  // by rank: it is in the set; it is watched for taking more
  int64_t watched_ns = 0;                  // when the thread last looked
  uint64_t complaint = 0;                  // the wait that the server was told of
  bool said_bye = false, server_said_bye = false;
};

}  // namespace vitrine
