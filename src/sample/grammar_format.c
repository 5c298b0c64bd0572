/* What JSON Schema's string formats look like, as regular expressions. Dates are exact (days of months, leap
 * years); names of hosts and numbers are bounded. */
#include <string.h>

#include "sample/grammar_internal.h"

#define DAYS31 "(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])"
#define DAYS30 "(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"
#define DAYS28 "02-(?:0[1-9]|1\\d|2[0-8])"
#define YEAR   "(?:000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})"
#define BY4    "(?:0[48]|[2468][048]|[13579][26])" /* 04 … 96 */
#define DATE   "(?:" YEAR "-(?:" DAYS31 "|" DAYS30 "|" DAYS28 ")|(?:\\d\\d" BY4 "|" BY4 "00)-02-29)"
#define OFFSET "(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define TIME   "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?" OFFSET

#define DURATION_TIME "T(?:\\d{1,9}H(?:\\d{1,9}M(?:\\d{1,9}S)?)?|\\d{1,9}M(?:\\d{1,9}S)?|\\d{1,9}S)"
#define DURATION_DATE "(?:\\d{1,9}Y(?:\\d{1,9}M(?:\\d{1,9}D)?)?|\\d{1,9}M(?:\\d{1,9}D)?|\\d{1,9}D)"
#define DURATION      "P(?:\\d{1,9}W|" DURATION_DATE "(?:" DURATION_TIME ")?|" DURATION_TIME ")"

/* At most 6 labels of 40 characters: below the limit of 253 in all. */
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,38}[A-Za-z0-9])?"
#define HOST  LABEL "(?:\\." LABEL "){0,5}"
#define ATOM  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,30}"
#define EMAIL ATOM "(?:\\." ATOM ")?@" HOST

#define BYTE10 "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4   BYTE10 "(?:\\." BYTE10 "){3}"
#define H16    "[0-9A-Fa-f]{1,4}"
#define IPV6                                                                                                 \
    "(?:(?:" H16 ":){7}" H16 "|(?:" H16 ":){1,7}:|(?:" H16 ":){1,6}:" H16 "|(?:" H16 ":){1,5}(?::" H16       \
    "){1,2}|(?:" H16 ":){1,4}(?::" H16 "){1,3}|(?:" H16 ":){1,3}(?::" H16 "){1,4}|(?:" H16 ":){1,2}(?::" H16 \
    "){1,5}|" H16 ":(?::" H16 "){1,6}|:(?::" H16 "){1,7}|::)"

#define PCHAR    "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define PCHAR_NC "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})" /* no colon */
#define TAIL     "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define REG_NAME "(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
#define AUTHORITY \
    "//(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?(?:" REG_NAME "|\\[" IPV6 "\\])(?::\\d{1,5})?"
#define PATH     "(?:/" PCHAR "*)*"
#define URI      "[A-Za-z][A-Za-z0-9+.-]*:(?:" AUTHORITY PATH "|/?" PCHAR "+" PATH "|)" TAIL
#define RELATIVE "(?:" AUTHORITY PATH "|(?:/" PCHAR "+" PATH "|/)|" PCHAR_NC "+" PATH "|)" TAIL

#define POINTER "(?:/(?:[^~/]|~[01])*)*"
#define HEX     "[0-9a-fA-F]"

const char *grammar_format_regex(const char *name)
{
    static const char *const table[][2] = {
        {"date-time", DATE "T" TIME},
        {"date", DATE},
        {"time", TIME},
        {"duration", DURATION},
        {"email", EMAIL},
        {"idn-email", EMAIL},
        {"hostname", HOST},
        {"idn-hostname", HOST},
        {"ipv4", IPV4},
        {"ipv6", IPV6},
        {"uuid", HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}"},
        {"uri", URI},
        {"iri", URI},
        {"uri-reference", "(?:" URI "|" RELATIVE ")"},
        {"iri-reference", "(?:" URI "|" RELATIVE ")"},
        {"json-pointer", POINTER},
        {"relative-json-pointer", "(?:0|[1-9]\\d{0,8})(?:#|" POINTER ")"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(name, table[i][0]) == 0)
            return table[i][1];
    return NULL;
}
