// SPDX-License-Identifier: Apache-2.0
#include "runtime/world/referee.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace vitrine::world {

Referee::Referee(int size) : members_(static_cast<size_t>(size)) {}

void Referee::join(int rank, std::string name, int64_t now_ns) {
  Member& m = member(rank);
  m.name = std::move(name);
  m.heard_ns = now_ns;
  if (!m.joined) ++joined_;
  m.joined = true;
}

std::string Referee::ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string Referee::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (!member(rank).joined) ranks.push_back(rank);
  }
  return ranks_text(ranks);
}

void Referee::hear(int rank, int64_t now_ns) { member(rank).heard_ns = now_ns; }

void Referee::set_devices(int rank, std::vector<std::string> names) {
  std::vector<DeviceState>& devices = member(rank).devices;
  devices.clear();
  for (std::string& name : names) {
    devices.emplace_back();
    devices.back().name = std::move(name);
  }
}

int Referee::device_count() const {
  size_t count = 0;
  for (const Member& m : members_) count += m.devices.size();
  return static_cast<int>(count);
}

std::string Referee::who(int rank, int device) const {
  const Member& m = member(rank);
  return m.devices.size() > 1 ? fmt::format("{}, device {}", m.name, m.devices[static_cast<size_t>(device)].name) : m.name;
}

void Referee::progress(int rank, int device, uint64_t finished, std::span<const CollectiveRecord> begun) {
  Member& m = member(rank);
  if (device < 0 || static_cast<size_t>(device) >= m.devices.size()) return;
  DeviceState& state = m.devices[static_cast<size_t>(device)];
  state.finished = std::max(state.finished, finished);
  for (const CollectiveRecord& record : begun) {
    if (record.sequence >= state.begun) state.last = record;
    state.begun = std::max(state.begun, record.sequence + 1);
    Round& round = rounds_[record.sequence];
    round.records.push_back({{rank, device}, record});
    if (static_cast<int>(round.records.size()) < device_count()) continue;
    compare(record.sequence, round);
    rounds_.erase(record.sequence);
  }
}

void Referee::compare(uint64_t /*sequence*/, const Round& round) {
  // What most of the devices began is taken for right; of two that disagree, the one of the lower rank.
  std::map<uint64_t, int> votes;
  for (const auto& [place, record] : round.records) ++votes[record.signature];
  if (votes.size() == 1) return;
  const CollectiveRecord* right = nullptr;
  std::pair<int, int> right_place;
  for (const auto& [place, record] : round.records) {
    const int count = votes[record.signature];
    if (right == nullptr || count > votes[right->signature] || (count == votes[right->signature] && place < right_place)) {
      right = &record;
      right_place = place;
    }
  }
  std::vector<int> others;
  std::string wrong;
  for (const auto& [place, record] : round.records) {
    if (record.signature == right->signature) {
      if (std::find(others.begin(), others.end(), place.first) == others.end()) others.push_back(place.first);
    } else if (wrong.empty()) {
      wrong = fmt::format("{} began {}", who(place.first, place.second), record.str());
    }
  }
  std::sort(others.begin(), others.end());
  decide(fmt::format("{}, where {} began {}; every rank must issue the same collectives in the same order", wrong, ranks_text(others), right->str()));
}

std::string Referee::position(int rank) const {
  const Member& m = member(rank);
  const DeviceState* furthest = nullptr;
  for (const DeviceState& state : m.devices) {
    if (furthest == nullptr || state.begun < furthest->begun) furthest = &state;
  }
  if (furthest == nullptr || !furthest->last) {
    return m.gathering.empty() ? "it had begun no collective" : fmt::format("it had begun no collective; its last exchange was for {}", m.gathering);
  }
  return fmt::format("its last was {}, {}", furthest->last->str(),
                     furthest->finished >= furthest->begun ? "which it finished" : "which it did not finish");
}

void Referee::overdue(int rank, std::string what, int64_t waited_ms, int64_t now_ns) {
  if (!overdue_) overdue_ = Overdue{rank, std::move(what), waited_ms, now_ns};
}

std::optional<std::vector<std::string>> Referee::gather(int rank, uint64_t sequence, std::string what, std::string part) {
  Member& m = member(rank);
  m.gatherings = sequence + 1;
  m.gathering = what;
  Gathering& gathering = gatherings_[sequence];
  if (gathering.parts.empty()) {
    gathering.parts.resize(members_.size());
    gathering.what = what;
  } else if (gathering.what != what) {
    decide(fmt::format("{} came to exchange {}, where others came to exchange {}; all ranks must run the same program with the same options", m.name,
                       what, gathering.what));
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

void Referee::decide(std::string verdict) {
  if (verdict_.empty()) verdict_ = std::move(verdict);
}

void Referee::fail(int rank, const std::string& reason) { decide(fmt::format("{} failed: {}; {}", member(rank).name, reason, position(rank))); }

void Referee::bye(int rank) { member(rank).said_bye = true; }

void Referee::lost(int rank, int64_t now_ns) {
  Member& m = member(rank);
  m.gone = true;
  if (!m.said_bye && !dead_) dead_ = {rank, now_ns};
}

std::string Referee::others_position(int rank) const {
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
  return furthest == nullptr || most <= own ? std::string() : fmt::format("; others have come to {}", furthest->str());
}

bool Referee::all_said_bye() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.said_bye || m.gone; });
}

void Referee::tick(int64_t now_ns) {
  if (!verdict_.empty()) return;
  if (dead_ && now_ns - dead_->second >= kDeathAfterNs) {
    const int rank = dead_->first;
    decide(fmt::format("{} died: its connection closed without a word; {}{}", member(rank).name, position(rank), others_position(rank)));
  }
  if (overdue_ && now_ns - overdue_->told_ns >= kJudgeAfterNs) judge(now_ns);
}

void Referee::judge(int64_t now_ns) {
  const Overdue overdue = *std::exchange(overdue_, std::nullopt);
  const std::string waiting =
      fmt::format("{} has waited {:.1f} s in {}", member(overdue.rank).name, static_cast<double>(overdue.waited_ms) * 1e-3, overdue.what);
  for (int rank = 0; rank < size(); ++rank) {
    const Member& m = member(rank);
    if (m.said_bye || now_ns - m.heard_ns < kSilentNs) continue;
    return decide(
        fmt::format("{} hangs: nothing was heard of it for {:.1f} s, though its connection is open (is it stopped, or its machine out of reach?); "
                    "{}{}. {}",
                    m.name, static_cast<double>(now_ns - m.heard_ns) * 1e-9, position(rank), others_position(rank), waiting));
  }
  // Who has begun the fewest collectives, and who the most.
  const DeviceState* first = nullptr;
  const DeviceState* last = nullptr;
  std::string last_name;
  int last_rank = 0;
  for (int rank = 0; rank < size(); ++rank) {
    const Member& m = member(rank);
    for (size_t d = 0; d < m.devices.size(); ++d) {
      const DeviceState& state = m.devices[d];
      if (first == nullptr || state.begun > first->begun) first = &state;
      if (last != nullptr && state.begun >= last->begun) continue;
      last = &state;
      last_rank = rank;
      last_name = who(rank, static_cast<int>(d));
    }
  }
  if (last != nullptr && last->begun < first->begun) {
    return decide(
        fmt::format("{} is late: others have begun {}, and it has not; {}. {}", last_name, first->last->str(), position(last_rank), waiting));
  }
  const auto fewer = [](const Member& a, const Member& b) { return a.gatherings < b.gatherings; };
  const auto [behind, ahead] = std::minmax_element(members_.begin(), members_.end(), fewer);
  if (behind->gatherings < ahead->gatherings) {
    return decide(fmt::format("{} is late: others have come to exchange {}, and it has not; {}. {}", behind->name, ahead->gathering,
                              position(static_cast<int>(behind - members_.begin())), waiting));
  }
  decide(fmt::format(
      "{}, which every rank has begun and none is known to have left: the network between them may be broken; choose a longer --timeout if "
      "it is only slow",
      waiting));
}

}  // namespace vitrine::world
