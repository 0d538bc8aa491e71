/* The C API is C, and refuses what is wrong by a code and a text. Runs of models are in tests/bundles/test_native.py.
 */
#include <torchport/c_api.h>

#include <stdio.h>
#include <string.h>

static int failures = 0;

static void check(int right, const char* what) {
  if (!right) {
    ++failures;
    fprintf(stderr, "not true: %s (%s)\n", what, torchport_error());
  }
}

static int run_model(const char* path) {
  torchport_session* session = NULL;
  torchport_options options = {0};
  torchport_tensor x, y;
  torchport_outputs *outputs = NULL, *none = NULL;
  float numbers[64];
  int64_t shape[8];
  size_t i, count = 1;
  if (torchport_open(path, &options, &session) != 0 || torchport_input_info(session, 0, &x) != 0) {
    fprintf(stderr, "%s\n", torchport_error());
    return 1;
  }
  for (i = 0; i < x.rank; ++i) {
    shape[i] = x.shape[i] < 0 ? 2 : x.shape[i];
    count *= (size_t)shape[i];
  }
  for (i = 0; i < count && i < 64; ++i) numbers[i] = (float)i;
  x.shape = shape;
  x.data = numbers;
  x.bytes = count * sizeof(float);
  if (torchport_run(session, &x, 1, &outputs) != 0 || torchport_output(outputs, 0, &y) != 0) {
    fprintf(stderr, "%s\n", torchport_error());
    torchport_close(session);
    return 1;
  }
  for (i = 0; i < y.bytes / sizeof(float); ++i) printf("%.9g\n", (double)((const float*)y.data)[i]);
  x.bytes = 1;
  check(torchport_run(session, &x, 1, &none) == 2 && none == NULL, "wrong bytes are refused");
  torchport_free_outputs(outputs);
  torchport_close(session);
  return failures != 0;
}

int main(int count, char** arguments) {
  torchport_session* session = (torchport_session*)1;
  torchport_tensor info;
  if (count > 1) return run_model(arguments[1]);
  check(torchport_open("/there/is/none.onnx", NULL, &session) == 2, "a missing file is a mistake of the caller");
  check(session == NULL, "the session is NULL on failure");
  check(strstr(torchport_error(), "there is no model file") != NULL, "the error says what happened");
  check(strstr(torchport_error(), "next:") != NULL, "the error says what to do");
  check(torchport_open(NULL, NULL, &session) == 2, "NULL is refused");
  check(torchport_input_info(NULL, 0, &info) == 2, "no session has no inputs");
  check(torchport_run(NULL, NULL, 0, NULL) == 2, "no session does not run");
  torchport_free_outputs(NULL);
  torchport_close(NULL);
  return failures != 0;
}
