/* torchport for C, and for every language that can call C: the library torchport_c.
 *
 *     torchport_session* session;
 *     torchport_options options = {0};
 *     if (torchport_open("model.onnx", &options, &session)) { fprintf(stderr, "%s\n", torchport_error()); return 1; }
 *     float numbers[6] = {1, 2, 3, 4, 5, 6};
 *     int64_t shape[2] = {2, 3};
 *     torchport_tensor x = {"x", TORCHPORT_FLOAT32, 2, shape, numbers, sizeof numbers};
 *     torchport_outputs* outputs;
 *     torchport_tensor y;
 *     if (torchport_run(session, &x, 1, &outputs) == 0 && torchport_output(outputs, 0, &y) == 0) use(y.data);
 *     torchport_free_outputs(outputs);
 *     torchport_close(session);
 *
 * Functions that return int give 0, or 1 where the model was refused, or 2 for a mistake of the caller; torchport_error
 * then says what happened, where, and what to do next. Pointers that are written to are set to NULL on failure.
 * Many threads may run one session at once. Tensors of texts are not taken here.
 */
#ifndef TORCHPORT_C_API_H
#define TORCHPORT_C_API_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define TORCHPORT_API
#else
#define TORCHPORT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum torchport_dtype {
  TORCHPORT_BOOL = 0,
  TORCHPORT_INT8,
  TORCHPORT_INT16,
  TORCHPORT_INT32,
  TORCHPORT_INT64,
  TORCHPORT_UINT8,
  TORCHPORT_UINT16,
  TORCHPORT_UINT32,
  TORCHPORT_UINT64,
  TORCHPORT_FLOAT16,
  TORCHPORT_BFLOAT16,
  TORCHPORT_FLOAT32,
  TORCHPORT_FLOAT64,
  TORCHPORT_COMPLEX64,
  TORCHPORT_COMPLEX128,
  TORCHPORT_STRING
} torchport_dtype;

/* How a model is opened; {0} for the defaults. */
typedef struct torchport_options {
  const char* const* libraries; /* operator libraries that you trust, by path */
  size_t library_count;
  int threads; /* for one run; 0 for the engine's own choice */
} torchport_options;

/* An input or an output. A size in the shape of a model's input is -1 where it may vary; data is NULL there. */
typedef struct torchport_tensor {
  const char* name;
  int32_t dtype;
  size_t rank;
  const int64_t* shape;
  void* data;
  size_t bytes;
} torchport_tensor;

typedef struct torchport_session torchport_session;
typedef struct torchport_outputs torchport_outputs;

/* What went wrong in this thread last; lives until the next call in this thread. */
TORCHPORT_API const char* torchport_error(void);

TORCHPORT_API int torchport_open(const char* path, const torchport_options* options, torchport_session** session);
TORCHPORT_API void torchport_close(torchport_session* session);

/* The model's inputs and outputs; what they point to lives as long as the session. */
TORCHPORT_API size_t torchport_input_count(const torchport_session* session);
TORCHPORT_API size_t torchport_output_count(const torchport_session* session);
TORCHPORT_API int torchport_input_info(const torchport_session* session, size_t index, torchport_tensor* info);
TORCHPORT_API int torchport_output_info(const torchport_session* session, size_t index, torchport_tensor* info);

/* Run the model on inputs given by name; without a copy of their numbers. */
TORCHPORT_API int torchport_run(const torchport_session* session, const torchport_tensor* inputs, size_t count,
                                torchport_outputs** outputs);

/* An output of a run; what it points to lives until torchport_free_outputs. */
TORCHPORT_API int torchport_output(const torchport_outputs* outputs, size_t index, torchport_tensor* output);
TORCHPORT_API void torchport_free_outputs(torchport_outputs* outputs);

#ifdef __cplusplus
}
#endif

#endif /* TORCHPORT_C_API_H */
