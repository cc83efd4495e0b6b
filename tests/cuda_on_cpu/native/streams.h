// The time of the device that is played. Kernels run at once, on the host; but when they began and ended is told as of a
// device that works on its own: each call takes the host a microsecond, each thread of a kernel takes its stream one,
// and nothing else takes any. So times are the same in each run, mean nothing of a real device, and hold what is to be
// found of streams, events and gates there.
#pragma once

namespace shim {

using Time = unsigned long long;  // microseconds

struct Event {
  Time at = 0;  // when it passes
};
// Null is the legacy default stream, which waits for all streams but those that were made to wait for none.
struct Stream {
  Time until = 0;  // when what was asked of it is over
  bool blocking = true;
};

Stream* make_stream(bool blocking);
void drop_stream(Stream* stream);

// What a stream is asked for: something that takes so long, to wait, to tell when all before is over.
void enqueue(Stream* stream, Time takes);
void wait_for(Stream* stream, const Event& event);
void record(Event& event, Stream* stream);
// The same of all streams together.
void all_wait_for(const Event& event);
void record_all(Event& event);

// The host looks, or waits.
bool passed(const Event& event);
void synchronize(const Event& event);
void synchronize(Stream* stream);
void synchronize_all();

}  // namespace shim
