#include "streams.h"

#include <algorithm>
#include <set>

namespace shim {

namespace {

Time host = 0;      // the time there
Time earliest = 0;  // before which no stream begins anything
Stream legacy;
std::set<Stream*> made;

Time latest(bool blocking_only) {
  Time at = legacy.until;
  for (const Stream* s : made)
    if (s->blocking || !blocking_only) at = std::max(at, s->until);
  return at;
}

Stream& of(Stream* stream) { return stream ? *stream : legacy; }

// When a stream can begin what it is asked for by this call.
Time begin(Stream* stream) {
  ++host;
  Time at = std::max({host, earliest, of(stream).until});
  if (!stream) at = std::max(at, latest(true));
  else if (stream->blocking) at = std::max(at, legacy.until);
  return at;
}

void host_waits(Time until) { host = std::max(host + 1, until); }

}  // namespace

Stream* make_stream(bool blocking) {
  auto* stream = new Stream{0, blocking};
  made.insert(stream);
  return stream;
}
void drop_stream(Stream* stream) {
  if (made.erase(stream)) delete stream;
}

void enqueue(Stream* stream, Time takes) { of(stream).until = begin(stream) + takes; }
void wait_for(Stream* stream, const Event& event) { of(stream).until = std::max(begin(stream), event.at); }
void record(Event& event, Stream* stream) { event.at = of(stream).until = begin(stream); }
void all_wait_for(const Event& event) { ++host, earliest = std::max(earliest, event.at); }
void record_all(Event& event) { ++host, event.at = std::max({host, earliest, latest(false)}); }

bool passed(const Event& event) { return event.at <= ++host; }
void synchronize(const Event& event) { host_waits(event.at); }
void synchronize(Stream* stream) { host_waits(stream ? stream->until : latest(true)); }
void synchronize_all() { host_waits(latest(false)); }

}  // namespace shim
