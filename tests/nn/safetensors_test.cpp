// SPDX-License-Identifier: Apache-2.0
// Invalid files: read_safetensors() refuses what the reference reader refuses, in time and memory proportional to the
// file.
#include <algorithm>
#include <ctime>

#include "nn/weights_file.h"
#include "tests/nn/file_fixture.h"
#include "tests/support/error_of.h"
#include "tests/support/limited_memory.h"

namespace vitrine::test {
namespace {

class Safetensors : public FileTest {
 protected:
  std::string refusal(const std::string& header, size_t data_bytes) const {
    const std::string file = write_file(header, data_bytes);
    return error_of<DataError>([&] { read_safetensors(file); });
  }
};

TEST_F(Safetensors, MalformedFilesAreRefusedWithTheReason) {
  struct Case {
    const char* header;
    size_t data_bytes;
    const char* reason;
  };
  const Case cases[] = {
      {"", 0, "not JSON"},
      {"{", 0, "not JSON"},
      {"[]", 0, "expected an object"},
      {"{\"a\": 1}", 0, "expected an object"},
      {R"({"a": {"shape": [1], "data_offsets": [0, 4]}})", 4, "no dtype"},
      {R"({"a": {"dtype": 5, "shape": [1], "data_offsets": [0, 4]}})", 4, "expected a string"},
      {R"({"a": {"dtype": "F32", "data_offsets": [0, 4]}})", 4, "no list of shape"},
      {R"({"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}})", 4, "has shape 1, expected a list"},
      {R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", 4, "-1"},
      {R"({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}})", 4, "1.5"},
      {R"({"a": {"dtype": "F32", "shape": [1]}})", 4, "no list of data_offsets"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}})", 4, "data_offsets"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", 4, "ascending"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 3, "data_offsets"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", 4, "does not fit"},
      {R"({"a": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]}})", 0, "does not fit"},
      {R"({"a": {"dtype": "F32", "shape": [18446744073709551615], "data_offsets": [0, 4]}})", 4,
       "non-negative integers"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 5, "follow the last"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})", 8, "hole"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})",
       12, "overlaps"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
       4, "twice"},
      {R"({"a": {"dtype": "F32", "shape": [1], "shape": [1], "data_offsets": [0, 4]}})", 4, "twice"},
      {R"({"__metadata__": {"a": 1}})", 0, "__metadata__"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.header);
    const std::string file = write_file(c.header, c.data_bytes);
    expect_mentions(error_of<DataError>([&] { read_safetensors(file); }), {file, "offset", c.reason});
  }
}

TEST_F(Safetensors, TruncatedFilesAreRefusedAtEveryLength) {
  write_safetensors(path(), {{"a", tensor_of({3}, DType::f32, 1)}, {"b", tensor_of({5}, DType::u8, 2)}}, {});
  const std::string whole = content(path());
  for (size_t length = 0; length < whole.size(); ++length) {
    write(whole.substr(0, length));
    EXPECT_THROW(read_safetensors(path()), DataError) << length << " of " << whole.size() << " bytes";
  }
  write(std::string(8, '\xFF') + whole);
  expect_mentions(error_of<DataError>([&] { read_safetensors(path()); }), {"offset 0", "18446744073709551615"});
  EXPECT_THROW(read_safetensors(path("absent")), DataError);
  EXPECT_THROW(read_safetensors(folder_.string()), DataError);
}

// 640 as eight bytes begins like a pickle.
TEST_F(Safetensors, AHeaderOf640BytesIsNoPickle) {
  std::string header = R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})";
  header.resize(640, ' ');
  EXPECT_EQ(read_safetensors(write_file(header, 4)).size(), 1U);
}

// The remaining cases of the reference reader's tests.
TEST_F(Safetensors, RefusesWhatTheFormatForbids) {
  expect_mentions(refusal("{\"\xff\": 1}", 0), {"not JSON", "UTF-8"});
  expect_mentions(refusal(" {}", 0), {"begins with byte 0x20"});
  expect_mentions(refusal("\xEF\xBB\xBF{}", 0), {"begins with byte 0xef"});
  expect_mentions(refusal("{} x", 0), {"not JSON"});
  expect_mentions(refusal("// none\n{}", 0), {"not JSON"});
  expect_mentions(refusal(R"({"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 0]}})", 0), {"does not fit"});
  expect_mentions(refusal(R"({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 20]}})", 20),
                  {"does not fit"});
  expect_mentions(
      refusal(R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296, 0], "data_offsets": [0, 0]}})", 0),
      {"does not fit"});
  expect_mentions(refusal(R"({"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4], "data_offsets": [0, 4]}})", 4),
                  {"data_offsets' twice"});
  expect_mentions(refusal(R"({"__metadata__": {}, "__metadata__": {}})", 0), {"__metadata__' twice"});
  expect_mentions(refusal(R"({"__metadata__": {"a": "b", "a": "c"}})", 0), {"'a' twice"});
  expect_mentions(refusal(R"({"__metadata__": {"a": {"b": "c"}}})", 0), {"object of strings"});
  expect_mentions(refusal(R"({"__metadata__": "a"})", 0), {"object of strings"});
  expect_mentions(refusal(R"({"a": []})", 0), {"described by an array"});
  expect_mentions(refusal(R"({"a": {"dtype": "F32", "shape": [[1]], "data_offsets": [0, 4]}})", 4),
                  {"an array in shape"});
  expect_mentions(refusal(R"({"a": {"dtype": "F32", "shape": {"b": 1}, "data_offsets": [0, 4]}})", 4),
                  {"has shape an object, expected a list"});
  expect_mentions(refusal(R"({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}})", 4),
                  {"expected a string"});
  expect_mentions(refusal(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}})", 4), {"expected two"});
  // A thousand names for the same bytes.
  std::string names = "{";
  for (int i = 0; i < 1000; ++i)
    names += (i > 0 ? ", " : "") + ("\"w" + std::to_string(i)) +
             R"(": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})";
  expect_mentions(refusal(names + "}", 8), {"overlaps"});
  // A header above the format's size limit, in a sparse file.
  write(std::string("\x01\xE1\xF5\x05\0\0\0\0", 8));
  std::filesystem::resize_file(path(), 100'000'009);
  expect_mentions(error_of<DataError>([&] { read_safetensors(path()); }),
                  {"offset 0", "100000001 bytes", "100000000 are allowed"});
}

TEST_F(Safetensors, ReadsWhatTheFormatAllows) {
  const auto tensors = read_safetensors(write_file(
      R"({"scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"empty":{"dtype":"F16","shape":[2,0],"data_offsets":[4,4]},)"
      R"("more":{"note":{"deep":[1,{"x":[]}]},"dtype":"U8","shape":[3],"data_offsets":[4,7],"tags":["a",null,true,1.5]},"__metadata__":{"a":"b"}}   )",
      7));
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors.at("scalar").shape, Shape{});
  EXPECT_EQ(tensors.at("empty").shape, (Shape{2, 0}));
  EXPECT_EQ(tensors.at("more").data.size(), 3U);
}

TEST_F(Safetensors, TensorsThatNoTensorHereCanBeAreNotRead) {
  const auto tensors = read_safetensors(write_file(
      R"({"f8":{"dtype":"F8_E4M3","shape":[0],"data_offsets":[0,0]},"f64":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
      R"("deep":{"dtype":"F32","shape":[1,1,1,1,1,2],"data_offsets":[8,16]},"new":{"dtype":"F4","shape":[2],"data_offsets":[16,17]},)"
      R"("u8":{"dtype":"U8","shape":[3],"data_offsets":[17,20]}})",
      20));
  ASSERT_EQ(tensors.size(), 5U);
  EXPECT_EQ(tensors.at("f8").foreign, "dtype F8_E4M3");
  EXPECT_EQ(tensors.at("f64").foreign, "dtype F64");
  EXPECT_EQ(tensors.at("deep").foreign, "more than 5 dimensions");
  EXPECT_EQ(tensors.at("new").foreign, "dtype F4");
  EXPECT_TRUE(tensors.at("f64").data.empty());
  EXPECT_EQ(tensors.at("u8").foreign, "");
  EXPECT_EQ(tensors.at("u8").data.size(), 3U);
}

TEST_F(Safetensors, AnIndexOfHuggingFaceNamesItsFiles) {
  const HostTensor a = tensor_of({2}, DType::f32, 1), b = tensor_of({3}, DType::bf16, 2);
  write_safetensors(path("model-1.safetensors"), {{"a", a}}, {});
  write_safetensors(path("model-2.safetensors"), {{"b", b}}, {});
  const std::string index = path("model.safetensors.index.json");
  const auto refusal_of = [&](const std::string& json) {
    std::ofstream(index) << json;
    return error_of<DataError>([&] { read_safetensors(index); });
  };
  std::ofstream(index) << R"({"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})";
  const auto tensors = read_safetensors(index);
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors.at("a").data, a.data);
  EXPECT_EQ(tensors.at("b").data, b.data);
  expect_mentions(refusal_of(R"({"weight_map": {"a": "model-3.safetensors"}})"),
                  {index, "it names model-3.safetensors, which is missing; download all of its files"});
  for (const char* name : {"../file", "/etc/passwd", ""}) {
    expect_mentions(refusal_of(std::string(R"({"weight_map": {"a": ")") + name + "\"}}"),
                    {"expected a name in its own folder"});
  }
  expect_mentions(refusal_of("{}"), {index, "expected an index of safetensors files", "weight_map"});
  for (const char* const wrong :
       {R"({"weight_map": {"a": 5}})", R"({"weight_map": {"a": ["b"]}})", R"({"weight_map": []})", "[]"})
    EXPECT_EQ(
        refusal_of(wrong),
        index + ": expected an index of safetensors files, {\"weight_map\": {\"TENSOR\": \"FILE.safetensors\", ...}}");
  expect_mentions(refusal_of("version https://git-lfs.github.com/spec/v1\n"), {"a Git LFS pointer", "git lfs pull"});
  write_safetensors(path("model-2.safetensors"), {{"a", a}}, {});
  expect_mentions(refusal_of(R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})"),
                  {"tensor 'a' is in two files of"});
}

TEST_F(Safetensors, OtherKindsOfFilesAreNamedWithARemedy) {
  const auto refusal_of = [&](const std::string& bytes) {
    write(bytes);
    return error_of<DataError>([&] { read_safetensors(path()); });
  };
  expect_mentions(
      refusal_of("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 244400000\n"),
      {path() + ": expected a safetensors file, found a Git LFS pointer; fetch the file itself with git lfs "
                "pull"});
  expect_mentions(refusal_of("<!DOCTYPE html><html></html>"), {"found an HTML page; the download failed"});
  expect_mentions(refusal_of("\x1f\x8b\x08" + std::string(20, 'z')), {"found a gzip file; unpack it with gunzip"});
  expect_mentions(refusal_of("\x80\x02" + std::string(20, 'z')),
                  {"found a Python pickle; convert it with docs/examples/convert_weights.py"});
  expect_mentions(refusal_of("\x93NUMPY" + std::string(20, 'z')), {"found a NumPy array; name a safetensors file"});
  expect_mentions(refusal_of("BZh"), {"found a bzip2 file"});
  expect_mentions(refusal_of(""), {"found an empty file"});
}

TEST_F(Safetensors, MessagesStayShortAndPrintable) {
  const std::string name(1'000'000, 'n');
  const std::string headers[] = {
      "{\"" + name + "\": 1}",
      "{\"" + name + R"(": {"dtype": ")" + name + R"(", "shape": [1], "data_offsets": [0, 5]})",
      "{\"" + name + R"(": {"dtype": "F32", "shape": [)" + std::string(100'000, '1') + "]}}",
      R"({"a": ")" + name,
      "{\"a\": " + std::string(1'000'000, '['),
      R"({"\u001b[31mred\u0000": {"dtype": "\u001b]0;title\u0007", "shape": [1], "data_offsets": [0, 5]})",
  };
  for (const std::string& header : headers) {
    const std::string message = refusal(header, 4);
    EXPECT_FALSE(message.empty());
    EXPECT_LT(message.size(), 2048U) << message.substr(0, 3000);
    EXPECT_TRUE(std::ranges::all_of(message, [](unsigned char c) { return c >= 0x20 && c < 0x7f; })) << message;
  }
}

TEST_F(Safetensors, ListsOfNamesStayShort) {
  const std::string names[] = {std::string(300, '\x01'), std::string(30, '\x01'), std::string(90, 'n'),
                               std::string(300, 'n')};
  const FlatLayout layout({ParamSpec{"weight", Shape{2}, {}, {}}}, 0);
  for (const std::string& name : names) {
    std::map<std::string, HostTensor> tensors;
    for (int i = 0; i < 20; ++i) tensors[std::to_string(i) + name] = tensor_of({1}, DType::f32, 1);
    write_safetensors(path(), tensors, {});
    std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
    const std::string message = error_of<DataError>([&] { load_weights(path(), layout, flat); });
    expect_mentions(message, {"missing parameters: weight", "unexpected parameters: 0", "and 12 more"});
    EXPECT_LT(message.size(), 1200U) << message;
    EXPECT_EQ(message.find("bytes)...") != std::string::npos, name.size() != 90) << message;
  }
}

// Sparse files, so that their data cost no disk.
TEST_F(Safetensors, AFileThatDoesNotFitIsRefusedBeforeItsDataAreRead) {
  const auto write_sparse = [&](const std::string& name, int64_t elements) {
    const std::string size = std::to_string(elements), bytes = std::to_string(4 * elements);
    const std::string header =
        "{\"" + name + R"(": {"dtype": "F32", "shape": [)" + size + R"(], "data_offsets": [0, )" + bytes + "]}}";
    write_file(header, 0);
    std::filesystem::resize_file(path(), 8 + header.size() + static_cast<size_t>(4 * elements));
  };
  const FlatLayout layout({ParamSpec{"weight", Shape{2}, {}, {}}}, 0);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
  const auto load = [&] { load_weights(path(), layout, flat); };
  const int64_t gib = int64_t{1} << 28;  // elements
  if (kMemoryCanBeLimited) {
    write_sparse("x", 4 * gib);
    with_memory(int64_t{256} << 20, [&] {
      expect_mentions(error_of<DataError>(load), {"missing parameters: weight", "unexpected parameters: x"});
    });
    write_sparse("weight", 4 * gib);
    with_memory(int64_t{256} << 20, [&] {
      expect_mentions(error_of<DataError>(load), {"weight has shape (1073741824)", "expected (2)"});
    });
  }
  write_sparse("x", 2048 * gib);
  expect_mentions(error_of<OutOfMemory>([&] { read_safetensors(path()); }),
                  {path(), "2.0 TiB of host memory", "are available"});
}

/// A header of `tensors` tensors of one byte each.
std::string header_of(int tensors) {
  std::string header = "{";
  for (int i = 0; i < tensors; ++i) {
    if (i > 0) header += ",";
    header += "\"layer." + std::to_string(i) + R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) +
              "," + std::to_string(i + 1) + "]}";
  }
  return header + "}";
}

/// Processor time of this thread, in seconds.
double time_of(const std::function<void()>& action) {
  timespec begin{}, end{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  action();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  return static_cast<double>(end.tv_sec - begin.tv_sec) + static_cast<double>(end.tv_nsec - begin.tv_nsec) * 1e-9;
}

// Ten times as many tensors take about ten times as long; with quadratic time it would be a hundred times.
TEST_F(Safetensors, TimeIsProportionalToTheHeader) {
  const auto time_of_reading = [&](int tensors) {
    const std::string file = write_file(header_of(tensors), static_cast<size_t>(tensors));
    return time_of([&] { EXPECT_EQ(read_safetensors(file).size(), static_cast<size_t>(tensors)); });
  };
  time_of_reading(4'000);  // warms up
  const double few = time_of_reading(4'000), many = time_of_reading(40'000);
  EXPECT_LT(many, 40 * few) << few << " s and " << many << " s";
}

TEST_F(Safetensors, MemoryIsProportionalToTheHeader) {
  if (!kMemoryCanBeLimited) GTEST_SKIP() << "a sanitizer needs unlimited memory";
  const size_t half = 7'500'000;
  const std::string nested = R"({"a": {"x": )" + std::string(half, '[') + std::string(half, ']') + "}}";
  const std::string file = write_file(nested, 0);
  with_memory(int64_t{64} << 20, [&] {
    expect_mentions(error_of<DataError>([&] { read_safetensors(file); }), {"nested deeper than 128"});
  });
  std::string wide = R"({"a": {"x": [[])";
  while (wide.size() < 2 * half) wide += ",[]";
  const std::string wide_file = write_file(wide + "]}}", 0);
  with_memory(int64_t{64} << 20,
              [&] { expect_mentions(error_of<DataError>([&] { read_safetensors(wide_file); }), {"no dtype"}); });
}

}  // namespace
}  // namespace vitrine::test
