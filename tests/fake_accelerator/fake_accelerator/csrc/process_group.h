// Collectives: gloo's, on the memory of the devices, queued on a stream of the group as NCCL's are.
#pragma once
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "streams.h"

namespace fake_accelerator {

using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

inline Tensors host_views(const Tensors& tensors) {
  Tensors views;
  for (auto& tensor : tensors) views.push_back(host_view(tensor));
  return views;
}

inline std::vector<Tensors> host_views(const std::vector<Tensors>& lists) {
  std::vector<Tensors> views;
  for (auto& tensors : lists) views.push_back(host_views(tensors));
  return views;
}

inline Tensors flatten(const std::vector<Tensors>& lists) {
  Tensors all;
  for (auto& tensors : lists) all.insert(all.end(), tensors.begin(), tensors.end());
  return all;
}

// Waiting for it makes the current stream wait, not the host. As NCCL's, it keeps the inputs until then.
class QueuedWork final : public c10d::Work {
 public:
  QueuedWork(c10::Stream stream, Tensors inputs, Tensors outputs)
      : stream_(stream), event_(kDevice), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {
    event_.record(stream);
    std::vector<c10::Device> devices;
    if (!outputs_.empty()) devices.push_back(stream.device());
    future_ = c10::make_intrusive<at::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    auto before = Guard().exchangeStream(stream);  // the future records an event on the current stream
    future_->markCompleted(at::IValue(outputs_));
    Guard().exchangeStream(before);
  }
  bool isCompleted() override { return event_.query(); }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    event_.block(Guard().getStream(stream_.device()));
    inputs_.clear();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return outputs_; }

 private:
  c10::Stream stream_;
  c10::Event event_;
  Tensors inputs_, outputs_;
  c10::intrusive_ptr<at::ivalue::Future> future_;
};

class ProcessGroup final : public c10d::Backend {
 public:
  explicit ProcessGroup(c10::intrusive_ptr<c10d::Backend> gloo)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), stream_(++last_stream) {}

  const std::string getBackendName() const override { return "fake_accelerator"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_number_; }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void abort() override {
    call("drop", int64_t(stream_));
    gloo_->abort();
  }
  void shutdown() override {
    call("drain", int64_t(stream_));
    if (call<bool>("leaving_needs_all")) gloo_->barrier(c10d::BarrierOptions{})->wait();
    gloo_->shutdown();
  }

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return queue("broadcast", tensors, tensors, [this, views = host_views(tensors), options]() mutable {
      gloo_->broadcast(views, options)->wait();
    });
  }
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return queue("all_reduce", tensors, tensors, [this, views = host_views(tensors), options]() mutable {
      gloo_->allreduce(views, options)->wait();
    });
  }
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return queue("all_reduce", tensors, tensors, [this, views = host_views(tensors), options]() mutable {
      c10d::AllreduceOptions each;
      each.reduceOp = options.reduceOp;
      for (auto& view : views) {
        Tensors one{view};
        gloo_->allreduce(one, each)->wait();
      }
    });
  }
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return queue("reduce", tensors, tensors, [this, views = host_views(tensors), options]() mutable {
      gloo_->reduce(views, options)->wait();
    });
  }
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override {
    return queue("all_gather", inputs, flatten(outputs),
                 [this, to = host_views(outputs), from = host_views(inputs), options]() mutable {
                   gloo_->allgather(to, from, options)->wait();
                 });
  }
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    Tensors outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override {
    return queue("all_gather", inputs, outputs,
                 [this, to = host_views(outputs), from = host_views(inputs), options]() mutable {
                   for (size_t each = 0; each < to.size(); each++) {
                     auto apart = from[each].clone();  // it may be a part of the output
                     gloo_->_allgather_base(to[each], apart, options)->wait();
                   }
                 });
  }
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override {
    Tensors outputs{output}, inputs{input};
    return reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override {
    return queue("reduce_scatter", inputs, outputs,
                 [this, to = host_views(outputs), from = host_views(inputs), options]() mutable {
                   for (size_t each = 0; each < to.size(); each++) {
                     auto apart = from[each].clone();
                     gloo_->_reduce_scatter_base(to[each], apart, options)->wait();
                   }
                 });
  }
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    return queue("scatter", flatten(inputs), outputs,
                 [this, to = host_views(outputs), from = host_views(inputs), options]() mutable {
                   gloo_->scatter(to, from, options)->wait();
                 });
  }
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return queue("gather", inputs, flatten(outputs),
                 [this, to = host_views(outputs), from = host_views(inputs), options]() mutable {
                   gloo_->gather(to, from, options)->wait();
                 });
  }
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                            std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    return queue("all_to_all", {input}, {output},
                 [this, to = host_view(output), from = host_view(input), output_sizes, input_sizes, options]() mutable {
                   gloo_->alltoall_base(to, from, output_sizes, input_sizes, options)->wait();
                 });
  }
  WorkPointer send(Tensors& tensors, int to, int tag) override {
    return queue("send", tensors, {}, [this, views = host_views(tensors), to, tag]() {
      std::erase_if(sent_, [](auto& each) { return each.first->isCompleted(); });
      Tensors copies;  // the sender goes on before the receiver has received
      for (auto& view : views) copies.push_back(view.contiguous().clone());
      auto work = gloo_->send(copies, to, tag);
      sent_.emplace_back(std::move(work), std::move(copies));
    });
  }
  WorkPointer recv(Tensors& tensors, int from, int tag) override {
    return queue("recv", {}, tensors, [this, views = host_views(tensors), from, tag]() mutable {
      gloo_->recv(views, from, tag)->wait();
    });
  }
  WorkPointer barrier(const c10d::BarrierOptions&) override {
    return queue("barrier", {}, {}, [this]() { gloo_->barrier(c10d::BarrierOptions{})->wait(); });
  }

 private:
  // Queues `run` after what the current stream has been given so far.
  WorkPointer queue(const char* name, const Tensors& inputs, const Tensors& outputs, std::function<void()> run) {
    sequence_number_++;
    auto device = current_device;
    for (auto* tensors : {&inputs, &outputs})
      for (auto& tensor : *tensors)
        if (tensor.device().type() == kDevice) device = tensor.device().index();
    c10::Stream stream = Guard::stream(c10::Device(kDevice, device), stream_);
    auto current = Guard().getStream(stream.device());
    {
      py::gil_scoped_acquire held;
      auto task = py::cpp_function([run = std::move(run)]() {
        py::gil_scoped_release released;
        run();
      });
      call("queue_collective", std::string(name), int(device), int64_t(current.id()), int64_t(stream_), addresses(inputs),
           addresses(outputs), task);
    }
    return c10::make_intrusive<QueuedWork>(stream, inputs, outputs);
  }

  static std::vector<intptr_t> addresses(const Tensors& tensors) {
    std::vector<intptr_t> found;
    for (auto& tensor : tensors)
      if (tensor.numel() && tensor.device().type() == kDevice)
        found.push_back(reinterpret_cast<intptr_t>(tensor.storage().data_ptr().get()));
    return found;
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  c10::StreamId stream_;
  std::atomic<uint64_t> sequence_number_{0};
  std::vector<std::pair<WorkPointer, Tensors>> sent_;
};

}  // namespace fake_accelerator
