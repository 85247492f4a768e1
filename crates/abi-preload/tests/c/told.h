/* What a call returned, as the test programs print it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The result, or the name of errno if it is negative. */
static inline const char *told(long result)
{
	static char text[64];

	if (result < 0)
		snprintf(text, sizeof(text), "%s", strerrorname_np(errno));
	else
		snprintf(text, sizeof(text), "%ld", result);
	return text;
}

#define TELL(what, result) printf("%s: %s\n", what, told(result))

static void need(int holds, const char *what)
{
	if (!holds) {
		printf("%s failed: %s\n", what, strerror(errno));
		fflush(stdout);
		exit(1);
	}
}
