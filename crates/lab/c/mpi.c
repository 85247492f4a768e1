/*
 * Checks data moved by MPI: around a ring, from all to all, and one-sided. Needs at least two processes. Each
 * process compares every byte that it receives. Rank 0 prints "right" for each correct exchange; the status is 0 if
 * all were.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE_MAX_BYTES = 1 << 20, WORDS = 1000, TURNS = 20, ADDS = 50, TAG = 7 };

/* Sizes around the limits of eager messages, packets and rendezvous. */
static const int SIZES_BYTES[] = { 0, 1, 8, 1023, 1024, 4096, 8191, 65536, 100000, SIZE_MAX_BYTES };
enum { SIZES = sizeof SIZES_BYTES / sizeof SIZES_BYTES[0] };

static int rank, ranks;

static unsigned char byte_of(int from, int to, int round, int at)
{
	return (unsigned char)(from * 31 + to * 17 + round * 7 + at + (at >> 8));
}

static void fill(unsigned char *bytes, int size_bytes, int from, int to, int round)
{
	for (int at = 0; at < size_bytes; at++)
		bytes[at] = byte_of(from, to, round, at);
}

static int count_wrong(const unsigned char *bytes, int size_bytes, int from, int to, int round)
{
	int wrong = 0;
	for (int at = 0; at < size_bytes; at++)
		wrong += bytes[at] != byte_of(from, to, round, at);
	return wrong;
}

static void *memory(size_t size_bytes)
{
	void *bytes = malloc(size_bytes ? size_bytes : 1);
	if (!bytes) {
		fprintf(stderr, "no memory\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	memset(bytes, 0xff, size_bytes);
	return bytes;
}

/* Each process sends to the next one: all sizes, several times. */
static int ring(void)
{
	int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks, wrong = 0;
	unsigned char *out = memory(SIZE_MAX_BYTES), *in = memory(SIZE_MAX_BYTES);
	for (int turn = 0; turn < TURNS; turn++) {
		int size_bytes = SIZES_BYTES[turn % SIZES], got = -1;
		MPI_Status status;
		fill(out, size_bytes, rank, next, turn);
		memset(in, 0xff, SIZE_MAX_BYTES);
		MPI_Sendrecv(out, size_bytes, MPI_BYTE, next, TAG, in, SIZE_MAX_BYTES, MPI_BYTE, last, TAG,
			     MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &got);
		wrong += got != size_bytes;
		wrong += count_wrong(in, size_bytes, last, rank, turn);
	}
	free(out);
	free(in);
	return wrong;
}

static int all_to_all(void)
{
	int wrong = 0;
	for (int at = 0; at < SIZES; at++) {
		size_t size_bytes = (size_t)SIZES_BYTES[at];
		unsigned char *out = memory(size_bytes * (size_t)ranks), *in = memory(size_bytes * (size_t)ranks);
		for (int peer = 0; peer < ranks; peer++)
			fill(out + size_bytes * (size_t)peer, (int)size_bytes, rank, peer, at);
		MPI_Alltoall(out, (int)size_bytes, MPI_BYTE, in, (int)size_bytes, MPI_BYTE, MPI_COMM_WORLD);
		for (int peer = 0; peer < ranks; peer++)
			wrong += count_wrong(in + size_bytes * (size_t)peer, (int)size_bytes, peer, rank, at);
		free(out);
		free(in);
	}
	return wrong;
}

static int sum(void)
{
	int64_t out[WORDS], in[WORDS];
	int wrong = 0;
	for (int at = 0; at < WORDS; at++)
		out[at] = (int64_t)(rank + 1) * at;
	MPI_Allreduce(out, in, WORDS, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (int at = 0; at < WORDS; at++)
		wrong += in[at] != (int64_t)ranks * (ranks + 1) / 2 * at;
	return wrong;
}

/* Each process puts a row into every window, then gets the rows of the others. */
static int put_and_get(void)
{
	int wrong = 0;
	int64_t *window, *row = memory(WORDS * sizeof *row);
	MPI_Win win;
	MPI_Win_allocate((MPI_Aint)sizeof(int64_t) * WORDS * ranks, sizeof(int64_t), MPI_INFO_NULL, MPI_COMM_WORLD,
			 &window, &win);
	MPI_Win_fence(0, win);
	for (int at = 0; at < WORDS; at++)
		row[at] = (int64_t)rank * WORDS + at;
	for (int peer = 0; peer < ranks; peer++)
		MPI_Put(row, WORDS, MPI_INT64_T, peer, (MPI_Aint)rank * WORDS, WORDS, MPI_INT64_T, win);
	MPI_Win_fence(0, win);
	for (int at = 0; at < WORDS * ranks; at++)
		wrong += window[at] != at;
	for (int peer = 0; peer < ranks; peer++) {
		int whose = (peer + rank) % ranks;
		memset(row, 0xff, WORDS * sizeof *row);
		MPI_Win_lock(MPI_LOCK_SHARED, peer, 0, win);
		MPI_Get(row, WORDS, MPI_INT64_T, peer, (MPI_Aint)whose * WORDS, WORDS, MPI_INT64_T, win);
		MPI_Win_unlock(peer, win);
		for (int at = 0; at < WORDS; at++)
			wrong += row[at] != (int64_t)whose * WORDS + at;
	}
	MPI_Win_free(&win);
	free(row);
	return wrong;
}

/* All processes add to one word of rank 0 and draw tickets from another: no ticket may be drawn twice. */
static int atomics(void)
{
	int64_t *window, one = 1, ticket, tickets = 0, all = 0, total = (int64_t)ADDS * ranks;
	int wrong = 0;
	MPI_Win win;
	MPI_Win_allocate(2 * sizeof(int64_t), sizeof(int64_t), MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
	MPI_Win_fence(0, win);
	window[0] = window[1] = 0;
	MPI_Win_fence(0, win);
	MPI_Win_lock_all(0, win);
	for (int at = 0; at < ADDS; at++) {
		MPI_Accumulate(&one, 1, MPI_INT64_T, 0, 0, 1, MPI_INT64_T, MPI_SUM, win);
		MPI_Fetch_and_op(&one, &ticket, MPI_INT64_T, 0, 1, MPI_SUM, win);
		MPI_Win_flush(0, win);
		wrong += ticket < 0 || ticket >= total;
		tickets += ticket;
	}
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Allreduce(&tickets, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	wrong += all != total * (total - 1) / 2;
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
		wrong += window[0] != total;
		MPI_Win_unlock(0, win);
	}
	MPI_Win_free(&win);
	return wrong;
}

static int check(const char *name, int (*exchange)(void))
{
	int wrong = exchange(), all = 0;
	MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("%s: %s\n", name, all ? "data mismatch" : "right");
		fflush(stdout);
	}
	return all != 0;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int failed = check("ring", ring) + check("all to all", all_to_all) + check("sum", sum) +
		     check("put and get", put_and_get) + check("atomics", atomics);
	MPI_Finalize();
	return failed ? 1 : 0;
}
