// SPDX-License-Identifier: Apache-2.0
// The Python module _vitrine: an engine on the caller's arrays, and the placement of blocks in memory.
#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "nn/checkpoint.h"
#include "nn/model.h"
#include "nn/parallel/engine.h"
#include "nn/weights_file.h"
#include "runtime/error.h"
#include "runtime/memory/placement.h"
#include "tools/program/checkpoint/run_state.h"
#include "tools/program/flags/advice.h"
#include "tools/program/flags/options.h"
#include "tools/program/run/run.h"
#include "tools/python/pickle_check.h"
#include "vitrine_version.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace vitrine::python {

namespace {

using Array = nb::ndarray<nb::ro>;

/// Results of a step, once they are there.
struct Slot {
  std::optional<StepResult> result;
  std::string failure;  // why there will be none
};

std::string dtype_name_of(const nb::dlpack::dtype& dtype) {
  const auto code = static_cast<nb::dlpack::dtype_code>(dtype.code);
  const char* const kind = code == nb::dlpack::dtype_code::Float     ? "float"
                           : code == nb::dlpack::dtype_code::Int     ? "int"
                           : code == nb::dlpack::dtype_code::UInt    ? "uint"
                           : code == nb::dlpack::dtype_code::Bool    ? "bool"
                           : code == nb::dlpack::dtype_code::Bfloat  ? "bfloat"
                           : code == nb::dlpack::dtype_code::Complex ? "complex"
                                                                     : "unknown";
  return fmt::format("{}{}", kind, dtype.bits);
}

/// An array as the engine reads it, without a copy.
///   call, name   "step", "x"
/// throws   ConfigError with one sentence
ConstView view_of(const char* call, const char* name, const nb::object& object, Array& array, DType dtype,
                  const Shape& sample, const std::vector<int64_t>& batches) {
  if (!nb::try_cast(object, array, false)) {
    throw ConfigError(fmt::format("{}: {} is no array of NumPy, nor one that exports DLPack: got {}", call, name,
                                  nb::type_name(object.type()).c_str()));
  }
  if (array.device_type() != nb::device::cpu::value)
    throw ConfigError(fmt::format("{0}: {1} lies on a device, expected host memory; pass {1}.cpu()", call, name));
  const auto expected_type = dtype == DType::f32  ? nb::dtype<float>()
                             : dtype == DType::u8 ? nb::dtype<uint8_t>()
                                                  : nb::dtype<int32_t>();
  if (array.dtype() != expected_type) {
    throw ConfigError(fmt::format("{0}: {1} has dtype {2}, expected {3}; convert it with {1}.astype('{3}')", call, name,
                                  dtype_name_of(array.dtype()), dtype_name_of(expected_type)));
  }
  std::vector<int64_t> sizes, expected = {0};
  for (size_t i = 0; i < array.ndim(); ++i) sizes.push_back(static_cast<int64_t>(array.shape(i)));
  for (int i = 0; i < sample.rank(); ++i) expected.push_back(sample[i]);
  const bool known = !sizes.empty() && std::ranges::find(batches, sizes[0]) != batches.end();
  if (known) expected[0] = sizes[0];
  if (sizes != expected) {
    const std::vector<int64_t> rest(expected.begin() + 1, expected.end());
    throw ConfigError(fmt::format("{}: {} has shape ({}), expected ({}{}{}) with a batch of {}", call, name,
                                  fmt::join(sizes, ", "), known ? std::to_string(sizes[0]) : "batch",
                                  rest.empty() ? "" : ", ", fmt::join(rest, ", "), fmt::join(batches, " or ")));
  }
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= sizes[i]) {
    if (sizes[i] > 1 && array.stride(i) != stride) {
      throw ConfigError(fmt::format(
          "{0}: {1} is not contiguous in memory, row by row; pass numpy.ascontiguousarray({1})", call, name));
    }
  }
  return {array.data(), Shape(sizes), dtype, DeviceId::host()};
}

nb::dict totals_of(const StepResult& result) {
  nb::dict totals;
  totals["loss"] = result.mean_loss();
  totals["valid"] = result.valid;
  totals["correct"] = result.correct;
  return totals;
}

nb::dict bytes_of(const BytesByCategory& bytes) {
  nb::dict by_category;
  for (size_t c = 0; c < static_cast<size_t>(kCategoryCount); ++c)
    by_category[category_name(static_cast<Category>(c))] = bytes[c];
  return by_category;
}

/// A read-only array of NumPy that keeps `owner` alive.
nb::object array_of(const float* data, const std::vector<size_t>& shape, const nb::object& owner) {
  return nb::cast(nb::ndarray<nb::numpy, const float>(data, shape.size(), shape.data(), owner));
}

}  // namespace

/// One engine with its model and devices. Calls from several threads take turns.
class Trainer {
  /// Calls `work` while this thread holds the engine and not the GIL.
  template <class Work>
  auto locked(const Work& work) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    return work();
  }

 public:
  struct Arrays {
    std::optional<int64_t> channels;
    bool floats = true;
    std::optional<std::pair<int64_t, int64_t>> raw_size;
    std::vector<int64_t> train_batches, evaluate_batches;
  };

  Trainer(const std::vector<std::string>& arguments, Arrays arrays) : arrays_(std::move(arrays)) {
    const tools::CommandLine line = tools::parse_command_line(arguments);
    if (!line.options) {
      const size_t begin = line.error.find(": ") + 2;
      throw ConfigError(line.error.substr(begin, line.error.find("\nTry '") - begin));
    }
    const tools::Options& options = *line.options;
    if (options.choices.any()) throw ConfigError("Engine takes values, not auto or max: vitrine.plan() finds them");
    open_model(options);
    const nb::gil_scoped_release release;
    const std::vector<DeviceId> ids = tools::resolve_devices(options, cuda_device_count());
    DeviceGroupOptions group = tools::device_group_options(options, ids);
    devices_ = std::make_unique<DeviceGroup>(group);
    EngineConfig config =
        tools::engine_config(options, job_, tools::resolve_scheme(options, ids), tools::resolve_precision(options));
    if (arrays_.floats) config.image_dtype = DType::f32;
    learning_rate_ = config.optimizer.learning_rate();
    if (arrays_.train_batches.empty()) arrays_.train_batches = {config.batch_size};
    if (arrays_.evaluate_batches.empty()) arrays_.evaluate_batches = arrays_.train_batches;
    engine_ = std::make_unique<Engine>(job_.model, *devices_, config,
                                       Workload{arrays_.train_batches, arrays_.evaluate_batches});
  }
  ~Trainer() {
    const nb::gil_scoped_release release;  // the batches that it holds are given back
    engine_.reset();
    devices_.reset();
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  std::shared_ptr<Slot> step(const nb::object& x, const nb::object& y) {
    const HostBatch batch = batch_of("step", x, y, arrays_.train_batches);
    auto slot = std::make_shared<Slot>();
    return locked([&] {
      try {
        engine_->train_step(batch);
        pending_.push_back(slot);
        collect(false);
      } catch (const std::exception& error) {
        give_up(tools::in_program_words(error));
        throw;
      }
      return slot;
    });
  }

  nb::dict evaluate(const nb::object& x, const nb::object& y, bool with_logits) {
    const HostBatch batch = batch_of("evaluate", x, y, arrays_.evaluate_batches);
    auto logits = std::make_unique<std::vector<float>>();
    const StepResult result = locked([&] { return engine_->evaluate(batch, with_logits ? logits.get() : nullptr); });
    nb::dict totals = totals_of(result);
    if (with_logits) {
      const auto classes = static_cast<size_t>(job_.model.classes);
      const std::vector<size_t> shape = {logits->size() / classes, classes};
      totals["logits"] = owned(std::move(logits), [&](const auto& values, const nb::object& owner) {
        return array_of(values.data(), shape, owner);
      });
    }
    return totals;
  }

  /// The results of a step: of all steps so far, which it waits for, if they are not there yet.
  nb::dict results(const Slot& slot) {
    locked([&] {
      if (slot.result || !slot.failure.empty()) return 0;
      try {
        collect(true);
      } catch (const std::exception& error) {
        give_up(tools::in_program_words(error));
        throw;
      }
      return 0;
    });
    if (!slot.result) throw DataError("this step has no results: " + slot.failure);
    nb::dict results = totals_of(*slot.result);
    results["gradient_norm"] = slot.result->gradient_norm;
    results["loss_scale"] = slot.result->loss_scale;
    results["skipped"] = slot.result->skipped;
    results["overflow"] = slot.result->overflow;
    return results;
  }

  /// By name, in PyTorch's layouts. All are parts of one copy in host memory.
  nb::dict values(int device, bool gradients) {
    check_device(device);
    Parameters& parameters = engine_->parameters();
    const FlatLayout layout = gradients ? parameters.layout().trained() : parameters.layout();
    auto ordered = std::make_unique<std::vector<float>>();
    std::vector<TensorSource> sources;
    std::vector<size_t> offsets;
    locked([&] {
      const std::vector<float> flat = gradients ? parameters.gradients(device) : parameters.values(device);
      std::vector<float> scratch(static_cast<size_t>(reordered_elements(layout)));
      sources = tensor_sources(layout, flat, "", scratch);
      for (const TensorSource& source : sources) {
        const std::span<const std::byte> bytes = source.bytes();
        offsets.push_back(ordered->size());
        ordered->resize(ordered->size() + bytes.size() / sizeof(float));
        std::memcpy(ordered->data() + offsets.back(), bytes.data(), bytes.size());
      }
      return 0;
    });
    nb::dict views;
    owned(std::move(ordered), [&](const auto& all, const nb::object& owner) {
      for (size_t i = 0; i < sources.size(); ++i) {
        std::vector<size_t> shape;
        for (int d = 0; d < sources[i].shape.rank(); ++d) shape.push_back(static_cast<size_t>(sources[i].shape[d]));
        views[sources[i].name.c_str()] = array_of(all.data() + offsets[i], shape, owner);
      }
      return owner;
    });
    return views;
  }

  /// Keys as in docs/json.md.
  nb::list memory() {
    nb::list rows;
    for (int d = 0; d < devices_->size(); ++d) {
      const Device& device = (*devices_)[d];
      const PoolStatistics statistics = locked([&] { return device.pool().statistics(); });
      const DevicePlan& plan = engine_->facts().plans[static_cast<size_t>(d)];
      nb::dict row;
      row["device"] = device.name();
      row["peak_bytes"] = statistics.peak_bytes;
      row["peak_bytes_by_category"] = bytes_of(statistics.peak_by_category);
      row["planned_peak_bytes"] = plan.peak_bytes;
      row["planned_peak_bytes_by_category"] = bytes_of(plan.peak_by_category);
      row["capacity_bytes"] = statistics.capacity_bytes;
      row["fits"] = true;
      rows.append(row);
    }
    return rows;
  }

  double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double lr) {
    locked([&] { return engine_->set_learning_rate(lr), 0; });
    learning_rate_ = lr;
  }
  int64_t steps() {
    return locked([&] { return engine_->steps_issued(); });
  }

  void save(const std::string& folder) {
    locked([&] {
      TrainingState state = engine_->checkpointer().make_state();
      engine_->checkpointer().copy_state(state);
      tools::RunState run;
      run.take_scalars(state);
      run.version = VITRINE_VERSION;
      run.epoch = state.step, run.batches_per_epoch = 1, run.batch_size = engine_->config().batch_size;
      const FlatLayout& layout = engine_->parameters().layout();
      const BufferLayout& buffers = engine_->parameters().buffer_layout();
      std::vector<float> scratch(static_cast<size_t>(checkpoint_scratch_elements(layout, buffers)));
      const std::filesystem::path path(folder);
      write_checkpoint(path.has_parent_path() ? path.parent_path().string() : ".", path.filename().string(),
                       checkpoint_files(layout, buffers, state, scratch, {{"format", "pt"}}), run_state_json(run));
      return 0;
    });
  }

  /// A checkpoint, or a file of weights alone.
  void load(const std::string& path) {
    locked([&] {
      Parameters& parameters = engine_->parameters();
      if (is_checkpoint(path)) {
        TrainingState state = engine_->checkpointer().make_state();
        state.take_scalars(tools::parse_run_state(path, read_checkpoint(path)));
        read_checkpoint_files(path, parameters.layout(), parameters.buffer_layout(), state);
        engine_->checkpointer().load_state(state);
        learning_rate_ = state.learning_rate;
        return 0;
      }
      std::vector<float> flat(static_cast<size_t>(parameters.layout().parameter_elements()));
      BufferValues buffers = parameters.buffer_layout().initial();
      load_parameters(path, parameters.layout(), flat, parameters.buffer_layout(), buffers);
      parameters.set(flat);
      parameters.set_buffers(buffers);
      return 0;
    });
  }

 private:
  void open_model(const tools::Options& options) {
    job_.model =
        options.model.ends_with(".json")
            ? read_model_file(options.model)
            : make_model(options.model, {options.image_size, arrays_.channels, options.classes, options.dropout});
    if (!options.freeze.empty()) job_.model.net->freeze(options.freeze);
    Dataset& train = job_.data.train;
    const auto [height, width] = arrays_.raw_size.value_or(std::pair(job_.model.height, job_.model.width));
    train.height = height, train.width = width, train.channels = job_.model.channels;
    job_.normalization = tools::resolve_normalization(options.normalize.empty() ? "none" : options.normalize, train);
  }

  /// Calls `use` with what `values` points to, and the Python object that owns it.
  template <class Use>
  static nb::object owned(std::unique_ptr<std::vector<float>> values, const Use& use) {
    std::vector<float>* const all = values.release();
    const nb::capsule owner(all, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
    return use(*all, owner);
  }

  HostBatch batch_of(const char* call, const nb::object& x, const nb::object& y,
                     const std::vector<int64_t>& batches) const {
    const auto arrays = std::make_shared<std::pair<Array, Array>>();
    const Model& model = job_.model;
    const bool floats = engine_->config().image_dtype == DType::f32;
    const Dataset& raw = job_.data.train;
    const Shape input = floats ? model.input_shape(1) : Shape{1, raw.height, raw.width, raw.channels};
    const auto sample_of = [](const Shape& shape) {
      std::vector<int64_t> sizes;
      for (int i = 1; i < shape.rank(); ++i) sizes.push_back(shape[i]);
      return Shape(sizes);
    };
    HostBatch batch;
    batch.images = view_of(call, "x", x, arrays->first, floats ? DType::f32 : DType::u8, sample_of(input), batches);
    batch.labels =
        view_of(call, "y", y, arrays->second, DType::i32, sample_of(model.label_shape(1)), {batch.images.shape[0]});
    batch.hold = arrays;
    return batch;
  }

  void check_device(int device) const {
    if (device < 0 || device >= devices_->size())
      throw ConfigError(fmt::format("device: expected 0 to {}, got {}", devices_->size() - 1, device));
  }

  void collect(bool wait) {
    for (StepResult& result : engine_->take_step_results(wait)) {
      pending_.front()->result = std::move(result);
      pending_.pop_front();
    }
  }
  void give_up(const std::string& reason) {
    for (const std::shared_ptr<Slot>& slot : pending_) slot->failure = reason;
    pending_.clear();
  }

  Arrays arrays_;
  tools::Job job_;
  std::unique_ptr<DeviceGroup> devices_;
  std::unique_ptr<Engine> engine_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Slot>> pending_;
  double learning_rate_ = 0.0;
};

namespace {

/// A block in use from event `first` to event `end`; blocks of different groups share no memory.
using Numbers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// (height, lower bound, largest sum) of the blocks as Vitrine places them.
std::tuple<int64_t, int64_t, int64_t> place(const Numbers& bytes, const Numbers& first, const Numbers& end,
                                            const Numbers& group) {
  std::vector<BlockLifetime> blocks;
  for (size_t i = 0; i < bytes.shape(0); ++i) {
    blocks.push_back({bytes(i), static_cast<int32_t>(first(i)), static_cast<int32_t>(end(i)),
                      static_cast<int32_t>(group(i)), BlockLifetime::kAnywhere});
  }
  const nb::gil_scoped_release release;
  return {place_blocks(blocks, 0).height, height_bound(blocks), largest_sum(blocks)};
}

/// Vitrine's errors as the package's, in the program's words.
void translate(const std::exception_ptr& exception, void* /*payload*/) {
  try {
    std::rethrow_exception(exception);
  } catch (const vitrine::Error& error) {
    const nb::module_ package = nb::module_::import_("vitrine._program");
    const bool usage = error.kind() == ErrorKind::config;
    PyErr_SetString(nb::object(package.attr(usage ? "UsageError" : "Error")).ptr(),
                    tools::in_program_words(error.reason()).c_str());
  }
}

}  // namespace

NB_MODULE(_vitrine, module) {
  nb::register_exception_translator(translate);
  module.def("place", place, "bytes"_a, "first"_a, "end"_a, "group"_a);
  module.def("check_pickle", check_pickle, "path"_a);
  nb::class_<Slot>(module, "Slot");
  nb::class_<Trainer>(module, "Trainer")
      .def(
          "__init__",
          [](Trainer* self, const std::vector<std::string>& arguments, std::optional<int64_t> channels, bool floats,
             std::optional<std::pair<int64_t, int64_t>> raw_size, std::vector<int64_t> train_batches,
             std::vector<int64_t> evaluate_batches) {
            new (self)
                Trainer(arguments, {channels, floats, raw_size, std::move(train_batches), std::move(evaluate_batches)});
          },
          "arguments"_a, "channels"_a.none(), "floats"_a, "raw_size"_a.none(), "train_batches"_a, "evaluate_batches"_a)
      .def("step", &Trainer::step, "x"_a.none(), "y"_a.none())
      .def("evaluate", &Trainer::evaluate, "x"_a.none(), "y"_a.none(), "logits"_a)
      .def("results", &Trainer::results, "slot"_a)
      .def("values", &Trainer::values, "device"_a, "gradients"_a)
      .def("memory", &Trainer::memory)
      .def("save", &Trainer::save, "folder"_a)
      .def("load", &Trainer::load, "path"_a)
      .def_prop_ro("steps", &Trainer::steps)
      .def_prop_rw("learning_rate", &Trainer::learning_rate, &Trainer::set_learning_rate);
}

}  // namespace vitrine::python
