// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/error.h"
#include "runtime/process_group/connection.h"
#include "runtime/process_group/failure_detector.h"
#include "runtime/process_group/message.h"
#include "runtime/process_group/mpi_session.h"
#include "runtime/process_group/process_group.h"
#include "runtime/process_group/rendezvous.h"
#include "runtime/process_group/sockets.h"

/// Private to runtime/process_group.
namespace vitrine {

namespace process_group {
inline constexpr int64_t kMs = 1'000'000;  // in nanoseconds
inline constexpr const char* kEndOfRun = "the end of the run";

/// Name of this process: "rank 2 (pid 77 on node1)".
std::string process_name(int rank);
/// The state of a process or thread, from its folder in /proc: 'R' runs or could run, 'T' is stopped; '?' if it is
/// gone.
char state_of(const std::filesystem::path& process);
/// Whether the process of this name is on this machine and a thread of it runs or waits for a processor.
bool is_runnable(const std::string& process_name);
}  // namespace process_group

/// State of a process group. Rank 0 is its server, with a connection to each other process (its members) and the
/// failure detector.
struct ProcessGroup::State {
  explicit State(const ProcessGroupOptions& o) : options(o), rank(o.rank), size(o.size), detector(o.size) {}

  // The start: connect.cpp.
  void connect();
  void wait_for_members(const process_group::Rendezvous& rendezvous);
  /// Takes the connection of a process, or returns why it may not join.
  std::string admit(const process_group::Join& join, process_group::Connection& connection);
  /// Forgets processes that disconnected before all had joined.
  void drop_disconnected();
  void find_server(const process_group::Rendezvous& rendezvous);
  /// Where rank 0 may be; empty if that is not known yet, and `problem` gives the cause.
  ///   broadcast_text  what rank 0 sent over MPI
  std::optional<process_group::Address> address_of_server(const process_group::Rendezvous& rendezvous,
                                                          const std::string& broadcast_text, std::string& problem);
  /// Joins the process group of the server at the other end and waits until all processes have joined. throws
  /// CommError if the server refuses this process; another error if it is not rank 0 of this run.
  void join_server(process_group::Connection connection, const std::string& key, const std::string& where);
  /// Of MPI_Init and MPI_Finalize; 0: none, the process must not be ended.
  int64_t mpi_deadline_ms() const { return options.exit_after_ms > 0 ? options.timeout_ms : 0; }
  int64_t rendezvous_ms() const { return options.timeout_ms * process_group::FailureDetector::kPatience; }

  // The process group's own thread: watch.cpp.
  void watch();
  void open_poll_set();
  void wait_for_something();
  void report_local(int64_t now_ns);
  void check_waits(int64_t now_ns);
  void serve(int peer, int64_t now_ns);
  void handle_from_member(int from, process_group::Message message, int64_t now_ns);
  void handle_from_server(process_group::Message message, int64_t now_ns);
  void send_to(int peer, const std::string& bytes);
  void send_to_server(process_group::Message message);
  void send_to_members(process_group::Message message);
  void declare(const Reason& verdict, bool found_here = true);
  /// "; rank 2 has reached collective 17 (...)", or empty.
  std::string own_position() const;
  bool has_unsent() const;
  bool done(int64_t now_ns);
  /// After the end of watch(): returns when all processes have called it, or have ended.
  void leave_together();

  /// Has the thread send a message to the server, after what the devices did before it. requires the mutex
  void post(process_group::Message message);
  void post_progress();
  void wake();
  /// Stops and joins the process group's threads.
  void stop();
  bool is_server() const { return rank == 0; }
  std::optional<process_group::Connection>& connection_to(int peer) {
    return is_server() ? members[static_cast<size_t>(peer)] : server;
  }
  void throw_if_failed_locked() const {
    if (!failure.empty()) throw CommError(failure);
  }
  static constexpr int64_t kByeTimeoutNs = 10'000 * process_group::kMs;
  int64_t timeout_ns() const { return options.timeout_ms * process_group::kMs; }

  struct Device {
    uint64_t finished = 0, reported_finished = 0;
    std::optional<CollectiveRecord> last;
    std::vector<CollectiveRecord> unreported;
  };
  struct Wait {
    std::string what;
    int64_t since_ns = 0;
  };

  ProcessGroupOptions options;
  int rank, size, local_rank = 0, local_size = 1;
  std::string connected_text;  // "over MPI", "at file:PATH"; empty for one process
  std::string machine;
  int host_count = 1;
  std::unique_ptr<process_group::MpiSession> mpi;
  Descriptor wake_up = process_group::make_event();
  std::thread thread, exit_thread;

  // Guarded by the mutex: data that other threads exchange with the process group's thread.
  mutable std::mutex mutex;
  std::condition_variable changed;
  Reason failure;
  bool warm = false, closing = false, stopping = false, closed = false;
  std::vector<Device> devices;
  std::map<uint64_t, Wait> waits;
  uint64_t next_id = 1, next_gathering = 0;
  int next_group = 0;
  std::vector<process_group::Message> outbox;         // to the server
  std::optional<std::vector<std::string>> gathered;   // on the server: all parts
  std::optional<std::vector<std::string>> to_answer;  // on the server: one for all, or one for each rank
  std::optional<std::string> answered;
  std::recursive_mutex handler_mutex;  // held while handlers run, which may call this object
  bool announced = false;
  bool all_reported = false;  // the failure was reported to the other processes and the handlers; guarded by `mutex`
  std::map<uint64_t, std::function<void(const Reason&)>> handlers;

  std::atomic<int64_t> transfers{0};

  // Used by the process group's thread only.
  process_group::FailureDetector detector;
  std::vector<std::optional<process_group::Connection>> members;  // on the server, by rank
  std::optional<process_group::Connection> server;                // on the members
  std::string last_refusal;                                       // by what may be another run's rank 0
  std::string server_name, server_position = "nothing is known of its collectives";
  int64_t server_heard_ns = 0, last_beat_ns = 0, failed_ns = 0, bye_ns = 0, progressed_ns = 0;
  Descriptor poll_set;         // of the connections, by the rank at their other end
  std::vector<int> ready;      // ranks whose connection has data or accepts more
  int64_t watched_ns = 0;      // when the thread last looked
  uint64_t reported_wait = 0;  // the wait reported to the server
  bool said_bye = false, server_said_bye = false;
};

}  // namespace vitrine
