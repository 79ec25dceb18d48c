// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/index.cuh"
#include "kernels/gather_rows.h"

namespace vitrine {

std::string row_out_of_range(int64_t row, int64_t place, int64_t count);  // gather_rows.cpp

namespace cuda {
namespace {

/// Any of the threads that find a row out of range reports it.
__device__ void report(Fault* fault, int64_t row, int64_t place, int64_t count) {
  if (atomicCAS_system(&fault->claimed, 0, 1) != 0) return;
  fault->values[0] = row;
  fault->values[1] = place;
  fault->values[2] = count;
  __threadfence_system();
  atomicExch_system(&fault->raised, 1);
}

std::string fault_message(const int64_t* values) { return row_out_of_range(values[0], values[1], values[2]); }

/// Each thread copies items of one access; a row has `row_items` of them.
template <class Item, class Index>
__global__ void __launch_bounds__(kBlockThreads) gather(const Item* x, int64_t x_rows, const int32_t* rows, Index items,
                                                        Divisor<Index> row_items, Item* y, Fault* fault) {
  wait_for_earlier_work();
  const auto stride = static_cast<Index>(item_stride());
  for (auto i = static_cast<Index>(first_item()); i < items; i += stride) {
    Index place = i;
    const Index column = row_items.split(place);
    const int64_t row = rows[place];
    Item value{};
    if (row >= 0 && row < x_rows) {
      value = x[row * row_items.value() + column];
    } else if (column == 0) {
      report(fault, row, place, x_rows);
    }
    y[i] = value;
  }
}

template <class Item>
void queue_gather(ExecContext& ctx, const ConstView& x, const ConstView& rows, const View& y) {
  constexpr auto kItemBytes = static_cast<int64_t>(sizeof(Item));
  const int64_t items = y.bytes() / kItemBytes;
  const int64_t row_items = items / y.shape[0];
  const dim3 grid = grid_for(ctx, items);
  const auto queue = [&]<class Index>(Index) {
    launch(native_stream(ctx), gather<Item, Index>, grid, dim3(kBlockThreads), static_cast<const Item*>(x.data),
           x.shape[0], rows.as<int32_t>(), static_cast<Index>(items), Divisor<Index>(row_items),
           static_cast<Item*>(y.data), fault_slot(ctx, fault_message));
  };
  if (fits_int32(items + int64_t{grid.x} * kBlockThreads)) {
    queue(int32_t{});
  } else {
    queue(int64_t{});
  }
}

}  // namespace

void gather_rows(ExecContext& ctx, ConstView x, ConstView rows, View y) {
  const auto splits_into = [&](int64_t bytes) {
    return (reinterpret_cast<uintptr_t>(x.data) | reinterpret_cast<uintptr_t>(y.data)) % static_cast<uint64_t>(bytes) ==
               0 &&
           y.bytes() / y.shape[0] % bytes == 0;
  };
  if (splits_into(16)) {
    queue_gather<Pack<uint32_t, 4>>(ctx, x, rows, y);
  } else if (splits_into(4)) {
    queue_gather<uint32_t>(ctx, x, rows, y);
  } else {
    queue_gather<uint8_t>(ctx, x, rows, y);
  }
}

}  // namespace cuda
}  // namespace vitrine
