/* Lets pyfuse3 answer OPEN with flags that it doesn't know: a backing id for kernel passthrough, and no FLUSH on close.
 * And tells whose request is being started: pyfuse3 hides that for reads and writes. And which number it has, in its first
 * sending as in any other. And gives a read of a file that was never opened its inode's number for a handle: pyfuse3 passes
 * on the handle alone, which the kernel sends as 0 where OPEN was answered with ENOSYS.
 *
 * pyfuse3 calls fuse_reply_open through the dynamic linker. This module is loaded with RTLD_GLOBAL before pyfuse3 and so
 * its own fuse_reply_open comes first. Python arms one reply, by file handle, right before its handler returns; there is
 * no other reply between arming and answering, because the handler does not wait in between.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#define DIRECT_IO (1u << 0)
#define KEEP_CACHE (1u << 1)
#define NONSEEKABLE (1u << 2)
#define CACHE_DIR (1u << 3)
#define PASSTHROUGH (1u << 7)
#define READ 15

struct open_out { /* struct fuse_open_out of linux/fuse.h, protocol 7.40 */
    uint64_t fh;
    uint32_t open_flags;
    int32_t backing_id;
};

static struct { uint64_t fh; uint32_t flags; int32_t backing_id; int armed; } next_reply;

__attribute__((visibility("default")))
int fuse_reply_open(fuse_req_t req, const struct fuse_file_info *info) {
    struct open_out out;
    memset(&out, 0, sizeof out);
    out.fh = info->fh;
    if (info->direct_io) out.open_flags |= DIRECT_IO;
    if (info->keep_cache) out.open_flags |= KEEP_CACHE;
    if (info->nonseekable) out.open_flags |= NONSEEKABLE;
    if (info->cache_readdir) out.open_flags |= CACHE_DIR;
    if (next_reply.armed && next_reply.fh == info->fh) {
        out.open_flags |= next_reply.flags;
        if (next_reply.backing_id > 0) {
            out.open_flags = (out.open_flags | PASSTHROUGH) & ~KEEP_CACHE; /* the kernel refuses both together */
            out.backing_id = next_reply.backing_id;
        }
    }
    next_reply.armed = 0;
    return fuse_reply_buf(req, (const char *)&out, sizeof out);
}

struct in_header { /* struct fuse_in_header of linux/fuse.h */
    uint32_t len, opcode;
    uint64_t unique, nodeid;
    uint32_t uid, gid, pid;
};

static struct { uint64_t unique; uint32_t pid, uid; } asking; /* pyfuse3 starts the handler of a request before it takes another */

__attribute__((visibility("default")))
void fuse_session_process_buf(struct fuse_session *session, const struct fuse_buf *request) {
    static void (*process)(struct fuse_session *, const struct fuse_buf *);
    if (!process) *(void **)&process = dlsym(RTLD_NEXT, "fuse_session_process_buf");
    memset(&asking, 0, sizeof asking);
    if (!(request->flags & FUSE_BUF_IS_FD) && request->size >= sizeof(struct in_header)) {
        const struct in_header *header = request->mem;
        asking.unique = header->unique;
        asking.pid = header->pid;
        asking.uid = header->uid;
        if (header->opcode == READ && request->size >= sizeof(struct in_header) + sizeof(uint64_t)) {
            uint64_t *fh = (uint64_t *)((char *)request->mem + sizeof(struct in_header)); /* first in struct fuse_read_in */
            if (!*fh) *fh = header->nodeid;
        }
    }
    process(session, request);
}

static PyObject *caller(PyObject *self, PyObject *none) {
    return Py_BuildValue("II", asking.pid, asking.uid);
}

static PyObject *request(PyObject *self, PyObject *none) {
    return PyLong_FromUnsignedLongLong(asking.unique);
}

static PyObject *arm(PyObject *self, PyObject *args) {
    unsigned long long fh;
    unsigned int flags;
    int backing_id;
    if (!PyArg_ParseTuple(args, "KIi", &fh, &flags, &backing_id)) return NULL;
    next_reply.fh = fh;
    next_reply.flags = flags;
    next_reply.backing_id = backing_id;
    next_reply.armed = 1;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"arm", arm, METH_VARARGS, "arm(fh, flags, backing_id): add these to the next OPEN reply if it is for fh."},
    {"caller", caller, METH_NOARGS, "caller() -> (thread id, uid) of the request whose handler is being started; 0: the kernel."},
    {"request", request, METH_NOARGS, "request(): number of the request whose handler has just been entered."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_passthrough", "Interposed OPEN replies.", -1, methods,
                                    NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__passthrough(void) {
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "reads_without_open", 1) < 0) Py_CLEAR(made);
    return made;
}
