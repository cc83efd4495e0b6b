// The backend calls of cuDNN's graph interface, for one forward convolution: part of fake_cudnn.cpp. Strict about each
// attribute: its descriptor, type and count, what is final and what is not yet, and that what a plan was made of is still
// there when it runs.
#pragma once

namespace graph {

enum Kind { CONV = 1, ENGINE, CONFIG, HEURISTICS, PLAN, KNOB = 7, INFO, FORWARD = 10, GRAPH = 15, PACK, TENSOR };
enum Type { T_HANDLE, T_DATA, T_INT64 = 3, T_FLOAT, T_POINTER = 6, T_MODE, T_HEUR, T_KNOB, T_NOTE = 11, T_DESCRIPTOR = 15, T_BEHAVIOR = 19 };

struct Node {
  int kind;
  bool final = false;
  std::map<int, std::vector<int64_t>> has;  // floats by their bits, addresses and descriptors as they are
  std::vector<Node*> own;                   // what cuDNN made for it
  std::vector<Node*> parts() const;
};

std::set<Node*> nodes;

struct Rule {
  int type, least, most;
  int kind;  // of the descriptors that it takes
  bool optional;
};

// What each kind of descriptor may be given.
const std::map<int, std::map<int, Rule>> rules = {
    {TENSOR, {{900, {T_INT64, 1, 1}}, {901, {T_DATA, 1, 1}}, {902, {T_INT64, 4, 8}}, {903, {T_INT64, 4, 8}}, {906, {T_INT64, 1, 1}}}},
    {CONV, {{100, {T_DATA, 1, 1}}, {101, {T_MODE, 1, 1}}, {102, {T_INT64, 2, 2}}, {103, {T_INT64, 2, 2}}, {104, {T_INT64, 2, 2}},
            {105, {T_INT64, 2, 2}}, {106, {T_INT64, 1, 1}}}},
    {FORWARD, {{700, {T_FLOAT, 1, 1}}, {701, {T_FLOAT, 1, 1}}, {702, {T_DESCRIPTOR, 1, 1, CONV}}, {703, {T_DESCRIPTOR, 1, 1, TENSOR}},
               {704, {T_DESCRIPTOR, 1, 1, TENSOR}}, {705, {T_DESCRIPTOR, 1, 1, TENSOR}}}},
    {GRAPH, {{800, {T_HANDLE, 1, 1}}, {801, {T_DESCRIPTOR, 1, 1, FORWARD}}}},
    {HEURISTICS, {{200, {T_HEUR, 1, 1}}, {201, {T_DESCRIPTOR, 1, 1, GRAPH}}}},
    {ENGINE, {{1300, {T_DESCRIPTOR, 1, 1, GRAPH}}, {1301, {T_INT64, 1, 1}}}},
    {CONFIG, {{300, {T_DESCRIPTOR, 1, 1, ENGINE}}, {302, {T_DESCRIPTOR, 0, 1, KNOB, true}}}},
    {INFO, {}},
    {KNOB, {{600, {T_KNOB, 1, 1}}, {601, {T_INT64, 1, 1}}}},
    {PLAN, {{400, {T_HANDLE, 1, 1}}, {401, {T_DESCRIPTOR, 1, 1, CONFIG}}}},
    {PACK, {{1000, {T_INT64, 3, 3}}, {1001, {T_POINTER, 3, 3}}, {1003, {T_POINTER, 1, 1}}}},
};

size_t width(int type) {
  return type == T_INT64 || type == T_HANDLE || type == T_POINTER || type == T_DESCRIPTOR ? 8 : 4;
}

Node* node(const void* p, int kind, bool final = true) {
  auto n = (Node*)p;
  return nodes.count(n) && n->kind == kind && n->final == final ? n : nullptr;
}

std::vector<Node*> Node::parts() const {
  std::vector<Node*> found;
  for (auto& [name, rule] : rules.at(kind))
    if (rule.type == T_DESCRIPTOR && has.count(name))
      for (auto v : has.at(name)) found.push_back((Node*)v);
  return found;
}

// Whether all that a descriptor was made of is still there.
bool alive(Node* n) {
  if (!nodes.count(n)) return false;
  for (auto part : n->parts())
    if (!alive(part)) return false;
  return true;
}

int64_t value(const Node* n, int name, int i = 0) { return n->has.at(name)[i]; }
Node* part(const Node* n, int name) { return (Node*)value(n, name); }
Node* forward_of(const Node* engine) { return part(part(engine, 1300), 801); }

// An engine: its notes, what it takes, and its milliseconds.
struct Kin {
  std::vector<int> notes, behaviors;
  int64_t workspace;
  double ms;
  enum { NEVER, ANY, UNIT, THREE } takes;  // UNIT: stride and dilation of one; THREE: with a kernel of 3x3, too
};
const std::vector<Kin> engines = {
    {{}, {}, 0, 6, Kin::ANY},            // with the knob 13=2 it takes 5.5 ms; 4 is refused
    {{0}, {0}, 64, 1, Kin::ANY},         // tensor cores: the fastest
    {{3}, {}, 4096, 4, Kin::UNIT},       // FFT; refuses before its notes can be read
    {{5, 6}, {}, 512, 2, Kin::THREE},    // Winograd, 4x4 tiles; refuses when it is to be a plan
    {{}, {}, 0, 1, Kin::ANY},            // refuses when it runs
    {{4}, {}, 128, 5, Kin::ANY},         // nondeterministic; with the knob 2=1 it takes 3 ms
    {{}, {}, 0, 1, Kin::NEVER},
    {{9, 12}, {}, 1 << 20, 7, Kin::ANY}, // a note of a newer cuDNN
};
enum { TURNED = 0, WINOGRAD = 3, RUNS_NOT = 4, KNOBBED = 5 };
// Engine -> type of its knob, its least and most value and what lies between two.
const std::map<int64_t, std::vector<int64_t>> knobs = {{TURNED, {13, 0, 4, 2}}, {KNOBBED, {2, 0, 1, 1}}};

bool takes(const Kin& kin, const Node* forward) {
  auto conv = part(forward, 702), w = part(forward, 703);
  bool unit = true;
  for (int name : {102, 103})
    for (int i = 0; i < 2; ++i) unit &= value(conv, name, i) == 1;
  bool three = value(w, 902, 2) == 3 && value(w, 902, 3) == 3;
  return kin.takes == Kin::ANY || (kin.takes == Kin::UNIT && unit) || (kin.takes == Kin::THREE && unit && three);
}

int refuse(const std::string& why) {
  last_words = why;
  return NOT_SUPPORTED;
}

int check_tensor(const Node* n) {
  NEED(value(n, 901) == 0 && n->has.at(902).size() == 4 && n->has.at(903).size() == 4);
  NEED(value(n, 900) > 0 && (value(n, 900) & (value(n, 900) - 1)) == 0 && value(n, 900) <= 256);
  for (int i = 0; i < 4; ++i) NEED(value(n, 902, i) > 0 && value(n, 903, i) > 0);
  return OK;
}

int check_conv(const Node* n) {
  NEED(value(n, 100) == 0 && value(n, 101) == 1 && value(n, 106) == 2);
  for (int i = 0; i < 2; ++i) NEED(value(n, 102, i) > 0 && value(n, 103, i) > 0 && value(n, 104, i) >= 0 && value(n, 105, i) >= 0);
  return OK;
}

int check_forward(const Node* n) {
  float alpha, beta;
  std::memcpy(&alpha, &n->has.at(700)[0], 4), std::memcpy(&beta, &n->has.at(701)[0], 4);
  NEED(alpha == 1 && beta == 0);
  auto c = part(n, 702), w = part(n, 703), x = part(n, 704), y = part(n, 705);
  NEED(value(w, 906) != value(x, 906) && value(x, 906) != value(y, 906) && value(w, 906) != value(y, 906));
  NEED(value(x, 902, 1) % value(w, 902, 1) == 0 && value(w, 902, 0) % (value(x, 902, 1) / value(w, 902, 1)) == 0);
  NEED(value(y, 902, 0) == value(x, 902, 0) && value(y, 902, 1) == value(w, 902, 0));
  for (int i = 0; i < 2; ++i) {
    auto room = value(x, 902, 2 + i) + value(c, 104, i) + value(c, 105, i) - value(c, 102, i) * (value(w, 902, 2 + i) - 1) - 1;
    NEED(room >= 0 && value(y, 902, 2 + i) == room / value(c, 103, i) + 1);
  }
  return OK;
}

int check_engine(const Node* n) {
  NEED(value(n, 1301) >= 0 && value(n, 1301) < int64_t(engines.size()));
  auto& kin = engines[value(n, 1301)];
  if (value(n, 1301) != WINOGRAD && !takes(kin, forward_of(n))) return refuse("no engine for this window");
  return OK;
}

int check_plan(const Node* n) {
  NEED(is((void*)value(n, 400), CUDNN));
  auto engine = part(part(n, 401), 300);
  if (!takes(engines[value(engine, 1301)], forward_of(engine))) return refuse("tiles need a 3x3 window of stride 1");
  return OK;
}

int check_pack(const Node* n) {
  std::set<int64_t> ids(n->has.at(1000).begin(), n->has.at(1000).end());
  NEED(ids.size() == 3);
  for (auto p : n->has.at(1001)) NEED(p && p % 16 == 0);
  return OK;
}

int check(Node* n) {
  for (auto& [name, rule] : rules.at(n->kind)) NEED(rule.optional || n->has.count(name));
  switch (n->kind) {
    case TENSOR: return check_tensor(n);
    case CONV: return check_conv(n);
    case FORWARD: return check_forward(n);
    case GRAPH: NEED(is((void*)value(n, 800), CUDNN)); return OK;
    case HEURISTICS:
      if (value(n, 200) == 1) return refuse("no model for this device");
      NEED(value(n, 200) == 2 || value(n, 200) == 3);
      return OK;
    case ENGINE: return check_engine(n);
    case CONFIG:
      if (n->has.count(302)) {
        auto& knob = knobs.at(value(part(n, 300), 1301));
        NEED(value(part(n, 302), 600) == knob[0]);
        if (value(part(n, 302), 601) == 4) return refuse("no kernel has this tile");
      }
      return OK;
    case PLAN: return check_plan(n);
    case PACK: return check_pack(n);
  }
  return OK;
}

int drop(void* given) {
  auto n = (Node*)given;
  NEED(nodes.count(n));
  nodes.erase(n);
  for (auto part : n->own) nodes.erase(part), delete part;
  delete n;
  return OK;
}

Node* filled(void* given, int kind, const std::map<int, std::vector<int64_t>>& has) {
  auto n = node(given, kind, false);
  if (n && n->has.empty()) n->has = has, n->final = true;
  return n && n->final ? n : nullptr;
}

// A configuration that the heuristics made: its engine and its knob are cuDNN's own.
bool proposed(void* given, Node* graph, int number, int knob) {
  auto engine = new Node{ENGINE, true, {{1300, {int64_t(graph)}}, {1301, {number}}}, {}};
  std::map<int, std::vector<int64_t>> has = {{300, {int64_t(engine)}}};
  std::vector<Node*> own = {engine};
  if (knob >= 0) {
    own.push_back(new Node{KNOB, true, {{600, {2}}, {601, {knob}}}, {}});
    has[302] = {int64_t(own[1])};
  }
  nodes.insert(own.begin(), own.end());
  auto config = filled(given, CONFIG, has);
  if (config) config->own = own;
  return config;
}

// (engine, knob) that a mode proposes, the best first.
std::vector<std::pair<int, int>> proposals(const Node* heuristics) {
  if (value(heuristics, 200) == 2) return {{0, -1}};
  std::vector<std::pair<int, int>> found = {{KNOBBED, 0}, {KNOBBED, 1}, {1, -1}};
  if (takes(engines[WINOGRAD], part(part(heuristics, 201), 801))) found.push_back({WINOGRAD, -1});
  return found;
}

int create(int kind, void** out) {
  NEED(rules.count(kind));
  auto n = new Node{kind, false, {}, {}};
  nodes.insert(n);
  *out = n;
  return OK;
}

int set(void* given, int name, int type, int64_t count, const void* elements) {
  auto n = (Node*)given;
  NEED(nodes.count(n) && !n->final && rules.at(n->kind).count(name) && elements);
  auto& rule = rules.at(n->kind).at(name);
  NEED(type == rule.type && count >= rule.least && count <= rule.most);
  std::vector<int64_t> values(count);
  for (int64_t i = 0; i < count; ++i) std::memcpy(&values[i], (char*)elements + i * width(type), width(type));
  if (type == T_DESCRIPTOR)
    for (auto v : values) NEED(node((void*)v, rule.kind));
  n->has[name] = values;
  return OK;
}

int get(void* given, int name, int type, int64_t asked, int64_t* count, void* elements) {
  auto n = (Node*)given;
  NEED(nodes.count(n) && n->final && alive(n) && count && asked >= 0 && (elements || !asked));
  auto give = [&](int kind, const std::vector<int64_t>& values) {
    NEED(type == kind);
    *count = int64_t(values.size());
    for (int64_t i = 0; i < std::min(asked, *count); ++i) std::memcpy((char*)elements + i * width(type), &values[i], width(type));
    return int(OK);
  };
  auto wide = [](const std::vector<int>& v) { return std::vector<int64_t>(v.begin(), v.end()); };
  if (n->kind == GRAPH && name == 802) return give(T_INT64, {int64_t(engines.size())});
  if (n->kind == ENGINE && name == 1301) return give(T_INT64, n->has[1301]);
  if (n->kind == ENGINE && name == 1303) return give(T_NOTE, wide(engines[value(n, 1301)].notes));
  if (n->kind == ENGINE && name == 1305) return give(T_BEHAVIOR, wide(engines[value(n, 1301)].behaviors));
  if (n->kind == KNOB && name == 600) return give(T_KNOB, n->has[600]);
  if (n->kind == KNOB && name == 601) return give(T_INT64, n->has[601]);
  if (n->kind == PLAN && name == 402) return give(T_INT64, {engines[value(part(part(n, 401), 300), 1301)].workspace});
  if (n->kind == INFO && n->has.count(name)) return give(name == 1200 ? T_KNOB : T_INT64, n->has[name]);
  NEED(type == T_DESCRIPTOR);
  auto into = (void**)elements;
  if (n->kind == HEURISTICS && name == 202) {
    auto found = proposals(n);
    *count = int64_t(found.size());
    for (int64_t i = 0; i < std::min(asked, *count); ++i) NEED(proposed(into[i], part(n, 201), found[i].first, found[i].second));
    return OK;
  }
  if (n->kind == ENGINE && name == 1302) {
    auto found = knobs.find(value(n, 1301));
    *count = found != knobs.end();
    if (asked && *count) {
      auto& k = found->second;
      NEED(filled(into[0], INFO, {{1200, {k[0]}}, {1202, {k[1]}}, {1201, {k[2]}}, {1203, {k[3]}}}));
    }
    return OK;
  }
  NEED(n->kind == CONFIG && (name == 300 || name == 302));
  *count = n->has.count(name);
  if (asked && *count) NEED(filled(into[0], part(n, name)->kind, part(n, name)->has));
  return OK;
}

int finalize(void* given) {
  auto n = (Node*)given;
  NEED(nodes.count(n) && !n->final && alive(n));
  if (int status = check(n)) return status;
  n->final = true;
  return OK;
}

int execute(void* handle, void* given, void* pointers) {
  auto plan = node(given, PLAN), pack = node(pointers, PACK);
  NEED(is(handle, CUDNN) && plan && pack && alive(plan) && value(plan, 400) == int64_t(handle));
  auto config = part(plan, 401), forward = part(part(part(config, 300), 1300), 801);
  auto number = value(part(config, 300), 1301);
  auto& kin = engines[number];
  if (number == RUNS_NOT) return last_words = "not for this architecture", NOT_SUPPORTED + 7;
  NEED(!kin.workspace || there((void*)value(pack, 1003), kin.workspace));
  std::map<int64_t, float*> at;
  for (int i = 0; i < 3; ++i) at[value(pack, 1000, i)] = (float*)value(pack, 1001, i);
  int n[3][4], s[3][4], window[6];  // of the image, the weights and the output; padding, stride and dilation
  float* data[3];
  for (int t = 0; t < 3; ++t) {
    auto tensor = part(forward, t == 0 ? 704 : t == 1 ? 703 : 705);
    for (int i = 0; i < 4; ++i) n[t][i] = int(value(tensor, 902, i)), s[t][i] = int(value(tensor, 903, i));
    NEED(at.count(value(tensor, 906)));
    data[t] = at[value(tensor, 906)];
    NEED(View(n[t], s[t]).in(data[t]));
  }
  bool last = s[0][1] == 1 && n[0][1] > 1;
  for (int t = 0; t < 3; ++t) {  // dense, and in the same layout
    const int channels = last ? 1 : n[t][2] * n[t][3], column = last ? n[t][1] : 1;
    NEED(s[t][1] == channels && s[t][3] == column && s[t][2] == n[t][3] * column && s[t][0] == n[t][1] * n[t][2] * n[t][3]);
  }
  for (int i = 0; i < 2; ++i) {
    window[i] = int(value(part(forward, 702), 105, i));
    window[2 + i] = int(value(part(forward, 702), 103, i));
    window[4 + i] = int(value(part(forward, 702), 102, i));
  }
  convolve(View(n[0], s[0]), data[0], View(n[1], s[1]), data[1], n[1][0] / (n[0][1] / n[1][1]), window, View(n[2], s[2]), data[2]);
  auto knob = config->has.count(302) ? value(part(config, 302), 601) : 0;
  clock_ms += (number == KNOBBED && knob == 1 ? 3 : number == TURNED && knob == 2 ? 5.5 : kin.ms) - 1;
  done("graph engine=" + std::to_string(number) + " knob=" + std::to_string(knob) + " last=" + std::to_string(last));
  return OK;
}

}  // namespace graph
