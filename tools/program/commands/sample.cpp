// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include <fmt/ranges.h>

#include "nn/weights_file.h"
#include "runtime/error.h"
#include "runtime/philox.h"
#include "runtime/text.h"
#include "tools/program/commands/commands.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/render/reports.h"
#include "tools/program/run/checkpoint_files.h"
#include "tools/program/run/evaluate.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools {
namespace {

/// Those of a text in UTF-8.
std::vector<std::string> characters_of(const std::string& text) {
  std::vector<std::string> all;
  for (const char byte : text) {
    const bool continues = (static_cast<uint8_t>(byte) & 0xC0U) == 0x80U;
    if (!continues || all.empty()) all.emplace_back();
    all.back() += byte;
  }
  return all;
}

/// What tokens stand for: the characters that the weights know, bytes, or nothing that is known here.
class Alphabet {
 public:
  Alphabet(const std::string& characters, int64_t vocabulary) {
    texts_ = characters_of(characters);
    are_bytes_ = texts_.empty() && vocabulary == kBytes;
    for (int byte = 0; are_bytes_ && byte < kBytes; ++byte) texts_.emplace_back(1, static_cast<char>(byte));
    vocabulary_ = vocabulary;
  }

  bool has_texts() const { return !texts_.empty(); }
  std::string text(int64_t token) const {
    return token < std::ssize(texts_) ? texts_[static_cast<size_t>(token)] : std::string();
  }
  std::vector<int64_t> tokens(const std::string& prompt) const {
    if (!has_texts())
      throw ConfigError(
          fmt::format("--prompt: the model's {} tokens are neither bytes nor characters that its weights "
                      "name; give --prompt-tokens",
                      vocabulary_));
    std::vector<int64_t> tokens;
    for (const char byte : are_bytes_ ? prompt : std::string()) tokens.push_back(static_cast<uint8_t>(byte));
    for (const std::string& character : are_bytes_ ? std::vector<std::string>() : characters_of(prompt)) {
      const auto found = std::ranges::find(texts_, character);
      if (found == texts_.end())
        throw ConfigError(fmt::format("--prompt: the weights know no '{}'; they know '{}'", excerpt(character),
                                      excerpt(fmt::format("{}", fmt::join(texts_, "")))));
      tokens.push_back(found - texts_.begin());
    }
    return tokens;
  }

 private:
  static constexpr int kBytes = 256;
  std::vector<std::string> texts_;
  bool are_bytes_ = false;
  int64_t vocabulary_ = 0;
};

/// Of drawn data; sets of it use the first ones.
constexpr uint64_t kLastStream = (uint64_t{1} << kRandomStreamBits) - 1;

/// One of the tokens, by their outputs.   source  Fan et al. 2018 (top-k)
int64_t draw(const SampleOptions& o, std::span<const float> logits, PhiloxSequence& random) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int64_t token) { return static_cast<double>(logits[static_cast<size_t>(token)]); };
  const auto all = static_cast<int64_t>(order.size());
  const auto kept = static_cast<std::ptrdiff_t>(o.temperature == 0.0 ? 1 : std::min(o.top_k.value_or(all), all));
  // The first of equal ones, as in PyTorch.
  std::partial_sort(order.begin(), order.begin() + kept, order.end(),
                    [&](int64_t a, int64_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; });
  order.resize(static_cast<size_t>(kept));
  double sum = 0.0;
  std::vector<double> sums;
  for (const int64_t token : order)
    sums.push_back(sum += kept == 1 ? 1.0 : std::exp((logit(token) - logit(order[0])) / o.temperature));
  const double drawn = static_cast<double>(random.next_uniform()) * sum;
  return order[static_cast<size_t>(std::min(std::ranges::upper_bound(sums, drawn) - sums.begin(), kept - 1))];
}

/// The model and no data: one sequence, of the prompt and what follows it where the model takes that many tokens.
Job open_sampled_job(const Options& o, const std::string& characters) {
  Job job;
  if (o.model.ends_with(".json")) {
    if (o.classes) throw ConfigError(fmt::format("--classes: the file {} sets it; leave it out", o.model));
    job.model = read_model_file(o.model);
    if (job.model.takes_images()) throw ConfigError(fmt::format("--model {}: it takes no tokens", o.model));
  } else {
    const int64_t most = model_sequence_length(o.model);
    if (most == 0) throw ConfigError(fmt::format("--model {}: it takes no tokens; choose gpt2 or nano-gpt", o.model));
    const auto prompt = static_cast<int64_t>(std::max(o.sample.prompt.size(), o.sample.prompt_tokens.size()));
    std::optional<int64_t> classes = o.classes;
    if (!classes && !characters.empty()) classes = std::ssize(characters_of(characters));
    job.model = make_model(
        o.model, {.classes = classes, .sequence_length = std::clamp<int64_t>(prompt + o.sample.tokens, 2, most)});
  }
  for (Dataset* const set : {&job.data.train, &job.data.test}) {
    set->sequence_length = job.model.targets_per_sample;
    set->classes = job.model.classes;
    set->characters = characters;
  }
  job.data.test.samples = samples_in_memory({}, {0});
  return job;
}

/// The outputs that follow the tokens.
std::span<const float> next_logits(Engine& engine, const Job& job, const std::vector<int64_t>& tokens,
                                   std::vector<float>& logits) {
  const int64_t length = job.model.targets_per_sample, count = std::min<int64_t>(length, std::ssize(tokens));
  // What follows the last token changes nothing: attention is causal.
  const auto sequence = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(2 * length));
  const auto last = std::span(tokens).last(static_cast<size_t>(count));
  std::transform(last.begin(), last.end(), sequence->begin(), [](int64_t t) { return static_cast<int32_t>(t); });
  const ConstView all(sequence->data(), {2, length}, DType::i32, DeviceId::host());
  logits.clear();
  engine.evaluate({.images = all.rows(0, 1), .labels = all.rows(1, 2), .hold = sequence}, &logits);
  const auto classes = static_cast<size_t>(job.model.classes);
  return std::span<const float>(logits).subspan(static_cast<size_t>(count - 1) * classes, classes);
}

}  // namespace

int run_sample(const Options& options) {
  const SampleOptions& o = options.sample;
  const std::string characters =
      with_prefix<DataError>("--weights ", [&] { return read_metadata(find_weights(options.weights), kCharacters); });
  const Job job = open_sampled_job(options, characters);
  const Alphabet alphabet(characters, job.model.classes);
  if (!o.prompt.empty() && !o.prompt_tokens.empty())
    throw ConfigError("--prompt and --prompt-tokens both say what to continue; give one of them");
  std::vector<int64_t> tokens = o.prompt_tokens;
  if (tokens.empty()) tokens = alphabet.tokens(o.prompt);
  if (tokens.empty()) throw ConfigError("--prompt: it is empty; give at least one character, or --prompt-tokens");
  for (const int64_t token : tokens) {
    if (token >= job.model.classes)
      throw ConfigError(fmt::format("--prompt-tokens {}: the model has {} tokens, expected a smaller number", token,
                                    job.model.classes));
  }
  Run run = open_evaluation(options, job,
                            std::make_unique<DeviceGroup>(
                                device_group_options(options, resolve_devices(options, cuda_device_count()), nullptr)),
                            options.weights);
  PhiloxSequence random(options.seed, random_stream(RandomPurpose::synthetic_data, kLastStream));
  const auto prompt = std::ssize(tokens);
  std::string text;
  const auto show = [&](int64_t token) {
    const std::string shown = alphabet.has_texts() ? alphabet.text(token) : fmt::format("{} ", token);
    text += shown;
    if (options.json) return;
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  };
  for (std::ptrdiff_t i = 0; i < prompt && !options.json; ++i) show(tokens[static_cast<size_t>(i)]);
  text.clear();
  std::vector<float> logits;
  while (std::ssize(tokens) - prompt < o.tokens && !interrupted()) {
    tokens.push_back(draw(o, next_logits(*run.engine, job, tokens, logits), random));
    show(tokens.back());
  }
  run.engine->finish();
  if (!options.json) {
    fmt::print("\n");
  } else {
    Json json;
    json["tokens"] = std::vector<int64_t>(tokens.begin() + prompt, tokens.end());
    json["text"] = alphabet.has_texts() ? Json(text) : Json();
    print_json(json);
  }
  return interrupted() ? interrupt_status() : kExitOk;
}

}  // namespace vitrine::tools
