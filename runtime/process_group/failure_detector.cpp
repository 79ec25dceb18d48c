// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/failure_detector.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/settings.h"
#include "runtime/text.h"

namespace vitrine::process_group {

std::string no_messages(const std::string& one, const std::string& other, int64_t silent_ms) {
  return fmt::format(
      "no messages between {} and {} for {:.1f} s, although their connection is open: the network between them is "
      "broken, or a machine is down",
      one, other, static_cast<double>(silent_ms) * 1e-3);
}

FailureDetector::FailureDetector(int size) : members_(static_cast<size_t>(size)) {}

void FailureDetector::join(int rank, std::string name, int64_t now_ns) {
  Member& m = member(rank);
  m.name = std::move(name);
  m.heard_ns = now_ns;
  if (!m.joined) ++joined_;
  m.joined = true;
}

void FailureDetector::leave(int rank) {
  if (member(rank).joined) --joined_;
  member(rank).joined = false;
}

std::string FailureDetector::ranks_text(const std::vector<Place>& places) {
  std::vector<int> ranks;
  for (const Place& place : places) {
    if (ranks.empty() || ranks.back() != place.first) ranks.push_back(place.first);
  }
  return describe_ranks(ranks);
}

std::string FailureDetector::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (!member(rank).joined) ranks.push_back(rank);
  }
  return describe_ranks(ranks);
}

void FailureDetector::hear(int rank, int64_t now_ns) { member(rank).heard_ns = now_ns; }

void FailureDetector::set_devices(int rank, std::vector<std::string> names) {
  std::vector<DeviceState>& devices = member(rank).devices;
  // Collectives are compared by device number once all devices have begun them.
  for (const auto& [key, round] : rounds_) {
    for (const Part& part : round.parts) {
      const auto of_rank = [&](const Place& place) { return place.first == rank; };
      if (std::ranges::none_of(part.places, of_rank)) continue;
      return decide(
          fmt::format("{} failed: it registered its devices again during {}", member(rank).name, part.record.str()));
    }
  }
  device_count_ += static_cast<int64_t>(names.size()) - static_cast<int64_t>(devices.size());
  devices.clear();
  for (std::string& name : names) {
    devices.emplace_back();
    devices.back().name = std::move(name);
  }
}

std::string FailureDetector::device_name(int rank, int device) const {
  const Member& m = member(rank);
  // It may now have fewer devices.
  if (m.devices.size() < 2 || static_cast<size_t>(device) >= m.devices.size()) return m.name;
  return fmt::format("{}, device {}", m.name, m.devices[static_cast<size_t>(device)].name);
}

void FailureDetector::progress(int rank, int device, uint64_t finished, std::span<const CollectiveRecord> begun) {
  Member& m = member(rank);
  if (device < 0 || static_cast<size_t>(device) >= m.devices.size()) return;
  DeviceState& state = m.devices[static_cast<size_t>(device)];
  state.finished = std::max(state.finished, finished);
  for (const CollectiveRecord& record : begun) {
    state.last = record;
    ++state.begun;
    const auto at = rounds_.try_emplace({record.group, record.sequence}).first;
    Round& round = at->second;
    auto part =
        std::ranges::find_if(round.parts, [&](const Part& p) { return p.record.signature == record.signature; });
    if (part == round.parts.end()) part = round.parts.insert(round.parts.end(), {record, {}});
    part->places.emplace_back(rank, device);
    if (++round.begun < device_count_) continue;
    if (round.parts.size() > 1) compare(std::move(round));
    rounds_.erase(at);
  }
}

namespace {

/// Of groups of places, one for each value: the largest, whose value counts as right (in a tie, the one with the first
/// place), and of the others the one with the first place. requires  at least two, with places in ascending order
template <class Group>
std::pair<Group, Group> right_and_wrong(std::vector<Group> groups) {
  std::ranges::sort(groups, [](const Group& a, const Group& b) {
    return a.places.size() != b.places.size() ? a.places.size() > b.places.size() : a.places.front() < b.places.front();
  });
  const auto wrong = std::min_element(groups.begin() + 1, groups.end(), [](const Group& a, const Group& b) {
    return a.places.front() < b.places.front();
  });
  return {groups.front(), *wrong};
}

constexpr int64_t kPauseEchoNs = 5'000'000'000;
constexpr const char* kSameCollectives = "every rank must issue the same collectives in the same order";

}  // namespace

void FailureDetector::compare(Round round) {
  for (Part& part : round.parts) std::ranges::sort(part.places);
  const auto [right, wrong] = right_and_wrong(std::move(round.parts));
  const auto [rank, device] = wrong.places.front();
  decide(fmt::format("{} began {}, where {} began {}; {}", device_name(rank, device), wrong.record.str(),
                     ranks_text(right.places), right.record.str(), kSameCollectives));
}

void FailureDetector::compare_counts() {
  struct Count {
    uint64_t begun;
    std::vector<Place> places;
  };
  std::vector<Count> counts;
  for (int rank = 0; rank < size(); ++rank) {
    for (size_t d = 0; d < member(rank).devices.size(); ++d) {
      const uint64_t begun = member(rank).devices[d].begun;
      auto count = std::ranges::find(counts, begun, &Count::begun);
      if (count == counts.end()) count = counts.insert(counts.end(), {begun, {}});
      count->places.emplace_back(rank, static_cast<int>(d));
    }
  }
  if (counts.size() < 2) return;
  const auto [right, wrong] = right_and_wrong(std::move(counts));
  const Place odd = wrong.places.front();
  const auto missed = std::ranges::find_if(rounds_, [&](const auto& round) {
    return std::ranges::none_of(round.second.parts,
                                [&](const Part& p) { return std::ranges::count(p.places, odd) > 0; });
  });
  const std::string which = missed == rounds_.end()
                                ? position(odd.first)
                                : fmt::format("it did not begin {}", missed->second.parts.front().record.str());
  decide(fmt::format("{} began {} collectives, where {} began {}; {}; {}", device_name(odd.first, odd.second),
                     wrong.begun, ranks_text(right.places), right.begun, which, kSameCollectives));
}

std::string FailureDetector::position(int rank) const {
  const Member& m = member(rank);
  const DeviceState* behind = nullptr;
  for (const DeviceState& state : m.devices) {
    if (behind == nullptr || state.begun < behind->begun) behind = &state;
  }
  if (behind == nullptr || !behind->last) {
    return m.gathering.empty() ? "it had begun no collective"
                               : fmt::format("it had begun no collective; its last exchange was for {}", m.gathering);
  }
  if (!behind->last->end_is_reported) return fmt::format("its last known was {}", behind->last->str());
  return fmt::format("its last known was {}, {}", behind->last->str(),
                     behind->finished >= behind->begun ? "which it finished" : "which it did not finish");
}

void FailureDetector::overdue(int rank, Overdue wait, int64_t now_ns) {
  std::optional<LongWait>& overdue = member(rank).overdue;
  if (!overdue && overdue_++ == 0) {
    for (Member& m : members_) m.at_overdue = m.activity;
  }
  overdue = LongWait{std::move(wait), now_ns, now_ns};
}

void FailureDetector::not_overdue(int rank) {
  if (member(rank).overdue) --overdue_;
  member(rank).overdue.reset();
}

std::optional<std::vector<std::string>> FailureDetector::gather(int rank, uint64_t sequence, std::string what,
                                                                std::string part) {
  Member& m = member(rank);
  m.gatherings = sequence + 1;
  m.gathering = what;
  Gathering& gathering = gatherings_[sequence];
  if (gathering.parts.empty()) {
    gathering.parts.resize(members_.size());
    gathering.what = what;
    gathering.first_rank = rank;
  } else if (gathering.what != what) {
    decide(
        fmt::format("{} reached exchange {}, where rank {} reached exchange {}; all ranks must run the same program "
                    "with the same options",
                    m.name, what, gathering.first_rank, gathering.what));
    return std::nullopt;
  }
  if (!gathering.parts[static_cast<size_t>(rank)]) ++gathering.present;
  gathering.parts[static_cast<size_t>(rank)] = std::move(part);
  if (gathering.present < size()) return std::nullopt;
  std::vector<std::string> parts;
  for (auto& p : gathering.parts) parts.push_back(std::move(*p));
  gatherings_.erase(sequence);
  return parts;
}

void FailureDetector::decide(Reason verdict) {
  if (verdict_.empty()) verdict_ = std::move(verdict);
}

void FailureDetector::fail(int rank, const Reason& reason) {
  decide(Reason(member(rank).name + " failed: ") + reason + fmt::format("; {}", position(rank)));
}

void FailureDetector::bye(int rank) {
  if (!member(rank).ended()) ++ended_;
  member(rank).said_bye = true;
}

void FailureDetector::set_activity(int rank, const Activity& activity) {
  Member& m = member(rank);
  if (activity.transfers > m.activity.transfers) m.moved_ns = m.heard_ns;
  const bool worked = activity.processor_ns - m.work_mark.second >= kWorkNs;
  if (worked) m.worked_ns = m.heard_ns;
  if (worked || m.heard_ns - m.work_mark.first >= kWorkWithinNs) m.work_mark = {m.heard_ns, activity.processor_ns};
  m.activity = activity;
}

void FailureDetector::lost(int rank, int64_t now_ns) {
  Member& m = member(rank);
  if (!m.ended()) ++ended_;
  m.gone = true;
  if (!m.said_bye && !dead_) dead_ = {rank, now_ns};
}

std::string FailureDetector::others_position(int rank) const {
  const CollectiveRecord* furthest = nullptr;
  uint64_t most = 0, own = 0;
  for (int r = 0; r < size(); ++r) {
    for (const DeviceState& state : member(r).devices) {
      if (r == rank) own = std::max(own, state.begun);
      if (state.begun <= most || !state.last) continue;
      most = state.begun;
      furthest = &*state.last;
    }
  }
  return furthest == nullptr || most <= own ? std::string() : fmt::format("; others have reached {}", furthest->str());
}

bool FailureDetector::all_said_bye() const { return ended_ == size(); }

void FailureDetector::was_stopped(int64_t pause_ns, int64_t now_ns) { pause_ = {pause_ns, now_ns}; }

void FailureDetector::tick(int64_t now_ns, const SilenceOf& silence_of) {
  if (!verdict_.empty()) return;
  if (dead_ && now_ns - dead_->second >= kDeathAfterNs) {
    const int rank = dead_->first;
    if (pause_ && dead_->second - pause_->second < kPauseEchoNs) {
      return decide(fmt::format("{} hung: it was stopped for {:.1f} s; {}. Meanwhile {} exited", member(0).name,
                                static_cast<double>(pause_->first) * 1e-9, position(0), member(rank).name));
    }
    if (const auto& wait = member(rank).overdue; wait && wait->report.silent_ms > 0)
      return decide(fmt::format("{}. {} exited; {}",
                                no_messages(member(0).name, member(rank).name, wait->report.silent_ms),
                                member(rank).name, position(rank)));
    decide(fmt::format("{} died: its connection closed unexpectedly; {}{}", member(rank).name, position(rank),
                       others_position(rank)));
  }
  if (overdue_ == 0) return;
  Member* oldest = nullptr;
  for (Member& m : members_) {
    if (m.overdue && (oldest == nullptr || m.overdue->reported_ns < oldest->overdue->reported_ns)) oldest = &m;
  }
  const int64_t begin_ns = oldest->overdue->next_ns;
  if (now_ns < begin_ns) return;
  if (watched_ns_ != begin_ns) {
    for (Member& m : members_) m.watched = m.activity;
    watched_ns_ = begin_ns;
  }
  if (now_ns - begin_ns >= kJudgeAfterNs) judge(*oldest, now_ns, silence_of);
}

bool FailureDetector::judge_silence(Member& waits, const std::string& waiting, int64_t now_ns,
                                    const SilenceOf& silence_of) {
  std::vector<int> silent;
  int living = 0;  // ranks other than 0 that have not ended
  for (int rank = 1; rank < size(); ++rank) {
    const Member& m = member(rank);
    if (m.ended()) continue;
    ++living;
    if (now_ns - m.heard_ns >= kSilentNs) silent.push_back(rank);
  }
  if (silent.empty()) return false;
  const int first = *std::ranges::min_element(silent, {}, [&](int rank) { return member(rank).heard_ns; });
  const Member& m = member(first);
  const Silence silence = silence_of(first);
  if (silence == Silence::kStarved && extend(waits, nullptr, slow(m.name, "it waits for a processor"), true))
    return true;
  const double seconds = static_cast<double>(now_ns - m.heard_ns) * 1e-9;
  const std::string where = position(first) + others_position(first);
  if (living > 1 && static_cast<int>(silent.size()) == living) {
    decide(
        fmt::format("{} receives nothing: all {} other ranks have been silent for up to {:.1f} s, but their "
                    "connections are open, so the likelier cause is rank 0's own network or machine. {}",
                    member(0).name, living, seconds, waiting));
  } else if (silence == Silence::kUnreachable) {
    std::vector<std::string> names;
    for (const int rank : silent) names.push_back(member(rank).name);
    decide(fmt::format(
        "{}; {}. {}",
        no_messages(member(0).name, fmt::format("{}", fmt::join(names, ", ")), (now_ns - m.heard_ns) / 1'000'000),
        where, waiting));
  } else {
    decide(
        fmt::format("{} hangs: it has sent nothing for {:.1f} s, but its connection is open (is it stopped, or its "
                    "machine unreachable?); {}. {}",
                    m.name, seconds, where, waiting));
  }
  return true;
}

Reason FailureDetector::slow(const std::string& name, const char* sign) {
  return fmt::format("{} is slow, not stuck: others wait for it, and {}", name, sign);
}

bool FailureDetector::extend(Member& waits, const Member* works, const Reason& notice, bool waits_for_processor) {
  LongWait& wait = *waits.overdue;
  const int64_t unit_ms = wait.report.waited_ms / (1 + wait.judged);
  const bool starved =
      waits_for_processor || (works != nullptr && works->works(recent_since_ns_) &&
                              works->activity.processor_ns - works->at_overdue.processor_ns < unit_ms * 1'000'000);
  if (++wait.judged >= (starved ? kPatienceWhileStarved : kPatience)) return false;
  if (wait.judged == 1 && !notice.empty()) {
    notice_ = notice + fmt::format("; waiting up to {:.0f} s{}", static_cast<double>(unit_ms * kPatience) * 1e-3,
                                   starved || works != nullptr ? ", longer if it gets little processor time" : "");
  }
  wait.report.waited_ms += unit_ms;
  wait.next_ns += unit_ms * 1'000'000;
  return true;
}

void FailureDetector::judge_late(int rank, const std::string& name, const std::string& late, Member& waits,
                                 const std::string& waiting) {
  const Member& m = member(rank);
  if (m.overdue) {
    return decide(fmt::format("{} is late: {}, and it waits in {}, which the others have left or not begun. {}", name,
                              late, m.overdue->report.what, waiting));
  }
  if ((m.works(recent_since_ns_) || waits.overdue->report.first_step) &&
      extend(waits, &m, m.works(recent_since_ns_) ? slow(name) : Reason()))
    return;
  decide(fmt::format(
      "{} is late: {}, and it has not{}; {}. {}", name, late,
      m.works(recent_since_ns_) ? ", although its processor time advances (is the machine overloaded?)" : "",
      position(rank), waiting));
}

void FailureDetector::judge(Member& waits, int64_t now_ns, const SilenceOf& silence_of) {
  const Overdue& wait = waits.overdue->report;
  recent_since_ns_ = now_ns - wait.waited_ms * 1'000'000 / (1 + waits.overdue->judged) / 2;
  const std::string waiting =
      fmt::format("{} has waited {:.1f} s in {}", waits.name, static_cast<double>(wait.waited_ms) * 1e-3, wait.what);
  if (judge_silence(waits, waiting, now_ns, silence_of)) return;
  // The devices that have begun the fewest and the most collectives.
  const DeviceState* first = nullptr;
  const DeviceState* last = nullptr;
  std::string last_name;
  int last_rank = 0;
  for (int rank = 0; rank < size(); ++rank) {
    const Member& m = member(rank);
    for (size_t d = 0; d < m.devices.size(); ++d) {
      const DeviceState& state = m.devices[d];
      if (first == nullptr || state.begun > first->begun) first = &state;
      if (last != nullptr && (state.begun > last->begun || (state.begun == last->begun && !member(last_rank).overdue)))
        continue;
      last = &state;
      last_rank = rank;
      last_name = device_name(rank, static_cast<int>(d));
    }
  }
  if (last != nullptr && last->begun < first->begun) {
    return judge_late(last_rank, last_name, "others have begun " + first->last->str(), waits, waiting);
  }
  const auto fewer = [](const Member& a, const Member& b) {
    return std::pair(a.gatherings, a.overdue.has_value()) < std::pair(b.gatherings, b.overdue.has_value());
  };
  const auto [behind, ahead] = std::ranges::minmax_element(members_, fewer);
  if (behind->gatherings < ahead->gatherings) {
    return judge_late(static_cast<int>(behind - members_.begin()), behind->name,
                      fmt::format("others have reached exchange {}", ahead->gathering), waits, waiting);
  }
  const auto moves = [this](const Member& m) { return m.moves(recent_since_ns_); };
  const bool counted = std::ranges::any_of(members_, [](const Member& m) { return m.activity.transfers > 0; });
  const auto works =
      std::ranges::find_if(members_, [this](const Member& m) { return !m.overdue && m.works(recent_since_ns_); });
  Reason notice;
  const Member* working = works != members_.end() ? &*works : nullptr;
  if (working != nullptr) notice = slow(working->name);
  if (std::ranges::any_of(members_, moves)) notice = waiting + ", which is slow, not stuck: data moves";
  // GPUs do not count transfers, and take long to connect.
  if ((!notice.empty() || (wait.first_step && !counted)) && extend(waits, working, notice)) return;
  decide({waiting,
          ", which every rank has begun and no rank is known to have finished: the network between them may be broken; "
          "choose a longer ",
          settings::kTimeoutMs, " if it is only slow"});
}

}  // namespace vitrine::process_group
