/* Stands in for libmpi.so.12 and libmpi_cxx.so.1 of Open MPI 1.10, so that CNTK 2.7 loads without them.

   One process, which has nobody to talk to. Whatever would talk ends the process and says so: a silent success would be
   a wrong result. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *provided) { *provided = wanted; return 0; }
int MPI_Initialized(int *flag) { *flag = 0; return 0; }
int MPI_Finalize(void) { return 0; }
int MPI_Comm_size(void *communicator, int *size) { *size = 1; return 0; }
int MPI_Comm_rank(void *communicator, int *rank) { *rank = 0; return 0; }
int MPI_Get_processor_name(char *name, int *length) { strcpy(name, "localhost"); *length = 9; return 0; }

/* Objects that are only pointed at. */
char ompi_mpi_comm_null[1024], ompi_mpi_comm_world[1024], ompi_mpi_op_sum[1024], ompi_mpi_char[1024],
    ompi_mpi_int[1024], ompi_mpi_long_long_int[1024], ompi_mpi_float[1024], ompi_mpi_double[1024];

static int refuse(const char *name)
{
    fprintf(stderr, "CNTK called %s: its MPI is a stand-in here, for one process that talks to no other\n", name);
    abort();
}

/* All that CNTK's libraries refer to, most of it from headers without ever calling it. */
#define X(name) int MPI_##name(void) { return refuse("MPI_" #name); }
X(Abort) X(Accumulate) X(Allgather) X(Allgatherv) X(Allreduce) X(Alltoall) X(Alltoallv) X(Alltoallw) X(Barrier)
X(Bcast) X(Bsend) X(Bsend_init) X(Cancel) X(Cart_coords) X(Cart_create) X(Cart_get) X(Cart_map) X(Cart_rank)
X(Cart_shift) X(Cart_sub) X(Cartdim_get) X(Comm_accept) X(Comm_connect) X(Comm_create) X(Comm_delete_attr)
X(Comm_disconnect) X(Comm_dup) X(Comm_free) X(Comm_get_attr) X(Comm_get_errhandler) X(Comm_get_name) X(Comm_group)
X(Comm_remote_group) X(Comm_remote_size) X(Comm_set_attr) X(Comm_set_errhandler) X(Comm_set_name) X(Comm_spawn)
X(Comm_spawn_multiple) X(Comm_split) X(Comm_test_inter) X(Errhandler_free) X(Error_string) X(Exscan) X(Gather)
X(Gatherv) X(Get) X(Get_count) X(Get_elements) X(Graph_create) X(Graph_get) X(Graph_map) X(Graph_neighbors)
X(Graph_neighbors_count) X(Graphdims_get) X(Grequest_complete) X(Group_excl) X(Group_free) X(Group_incl)
X(Group_range_excl) X(Group_range_incl) X(Group_rank) X(Group_size) X(Iallgather) X(Iallreduce) X(Ibsend)
X(Info_delete) X(Info_dup) X(Info_free) X(Info_get) X(Info_get_nkeys) X(Info_get_nthkey) X(Info_get_valuelen)
X(Info_set) X(Intercomm_create) X(Intercomm_merge) X(Iprobe) X(Irecv) X(Irsend) X(Isend) X(Issend) X(Op_commutative)
X(Op_create) X(Op_free) X(Pack) X(Pack_external) X(Pack_external_size) X(Pack_size) X(Probe) X(Put) X(Recv)
X(Recv_init) X(Reduce) X(Reduce_local) X(Reduce_scatter) X(Request_free) X(Request_get_status) X(Rsend)
X(Rsend_init) X(Scan) X(Scatter) X(Scatterv) X(Send) X(Send_init) X(Sendrecv) X(Sendrecv_replace) X(Ssend)
X(Ssend_init) X(Start) X(Status_set_cancelled) X(Status_set_elements) X(Test) X(Test_cancelled) X(Topo_test)
X(Type_commit) X(Type_contiguous) X(Type_create_darray) X(Type_create_hindexed) X(Type_create_hvector)
X(Type_create_indexed_block) X(Type_create_resized) X(Type_create_subarray) X(Type_delete_attr) X(Type_dup)
X(Type_get_attr) X(Type_get_contents) X(Type_get_envelope) X(Type_get_extent) X(Type_get_name)
X(Type_get_true_extent) X(Type_indexed) X(Type_set_attr) X(Type_set_name) X(Type_size) X(Type_vector) X(Unpack)
X(Unpack_external) X(Wait) X(Waitall) X(Waitany) X(Win_call_errhandler) X(Win_complete) X(Win_delete_attr)
X(Win_fence) X(Win_get_errhandler) X(Win_get_group) X(Win_get_name) X(Win_lock) X(Win_post) X(Win_set_attr)
X(Win_set_errhandler) X(Win_set_name) X(Win_start) X(Win_test) X(Win_unlock) X(Win_wait)
#undef X
int ompi_op_set_cxx_callback(void) { return refuse("ompi_op_set_cxx_callback"); }
int ompi_mpi_cxx_op_intercept(void) { return refuse("ompi_mpi_cxx_op_intercept"); }

/* The C++ bindings, by their mangled names: MPI::Comm::Comm(), Win::Free(), Datatype::Free(). */
void _ZN3MPI4CommC2Ev(void *self) {}
int _ZN3MPI3Win4FreeEv(void) { return refuse("MPI::Win::Free"); }
int _ZN3MPI8Datatype4FreeEv(void) { return refuse("MPI::Datatype::Free"); }
